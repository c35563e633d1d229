#!/bin/bash
# deb_inside.sh - run by deb.sh where systemd is process 1: the package's life, from its installation to its purge.
set -eux
unit=rdma-nfsd.service
settings=/etc/rdma-nfsd/exports.yaml
cd /root

active() { # active: wait until the unit is, for a minute
    for ((waited = 0; waited < 120; waited++)); do
        ! systemctl is-active -q $unit || return 0
        sleep 0.5
    done
    journalctl -q -o cat -u $unit
    return 1
}

dpkg -i first.deb
[ "$(systemctl is-enabled $unit || :) $(systemctl is-active $unit || :)" = "disabled inactive" ]
grep -q "anonuid: $(id -u rdma-nfsd)$" $settings
rdma-nfsd check --config $settings && exit 1 || [ $? = 1 ] # there is no /srv/nfs yet
mkdir -m 777 /srv/nfs
echo "Hello over NFS." >/srv/nfs/file
rdma-nfsd check --config $settings
systemctl enable --now $unit
active
[ "$(rdma-nfsd cat rdma://127.0.0.1/nfs/file)" = "Hello over NFS." ]
rdma-nfsd cp /etc/hostname rdma://127.0.0.1/nfs/copied
[ "$(stat -c %U /srv/nfs/copied)" = rdma-nfsd ] # root is squashed
systemctl reload $unit
active

pid=$(systemctl show --value -p MainPID $unit)
echo "# mine" >>$settings
dpkg-deb --raw-extract first.deb tree
sed -i 's/^Version: .*/&+later/' tree/DEBIAN/control
dpkg-deb --build --root-owner-group -Znone tree later.deb
dpkg -i later.deb
active
dpkg-query -W rdma-nfsd | grep -F +later
[ "$(systemctl show --value -p MainPID $unit)" != "$pid" ]
[ "$(tail -n 1 $settings)" = "# mine" ]
[ "$(rdma-nfsd cat rdma://127.0.0.1/nfs/file)" = "Hello over NFS." ]

dpkg -r rdma-nfsd
! systemctl is-active -q $unit
[ ! -e /usr/lib/rdma-nfsd ] && [ ! -e /usr/bin/rdma-nfsd ]
[ -e $settings ] && [ -e /var/lib/rdma-nfsd/handle.key ]
dpkg -P rdma-nfsd
[ ! -e /etc/rdma-nfsd ] && [ ! -e /var/lib/rdma-nfsd ] && [ -e /srv/nfs/file ]
echo "deb_inside.sh: all is well"
