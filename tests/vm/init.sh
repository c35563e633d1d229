#!/bin/busybox sh
# /init of the test guest's initramfs (busybox sh).
#
# The guest's root is an overlay: a tmpfs on top, below it the packages that only the guest needs (9p tag "pkgs"), below that
# the host's own root file system, read-only (9p tag "host"). So compilers, Python and this project are simply there.
# Then a command agent (agent.sh) is started on every virtio-serial port named agentN; with vm_systemd=1, systemd too.
# Parameters come from the kernel command line as vm_NAME=VALUE.
export PATH=/bin
B=/bin/busybox
$B mkdir -p /proc /sys /dev /ovl /host /pkgs /root
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
for word in $($B cat /proc/cmdline); do
    case $word in vm_*=*) eval "$word" ;; esac
done
die() {
    echo "guest init: FAILED: $*"
    $B poweroff -f
}
for module in $($B cat /modules.list); do
    $B insmod /modules/$module || echo "guest init: insmod $module failed"
done

P9=trans=virtio,version=9p2000.L,msize=512000
$B mount -t tmpfs -o size=${vm_tmpfs:-75%},mode=755 ovl /ovl
$B mkdir -p /ovl/up /ovl/work /newroot
$B mount -t 9p -o ro,$P9,cache=loose,noatime host /host || die "9p host"
$B mount -t 9p -o ro,$P9,cache=loose,noatime pkgs /pkgs || die "9p pkgs"
$B mount -t overlay -o lowerdir=/pkgs:/host,upperdir=/ovl/up,workdir=/ovl/work ovl /newroot || die overlay

N=/newroot
$B mount -t proc proc $N/proc
$B mount -t sysfs sys $N/sys
$B mount -t devtmpfs dev $N/dev
$B mkdir -p $N/dev/pts $N/dev/shm $N/mnt
$B mount -t devpts -o mode=620,ptmxmode=666 devpts $N/dev/pts
$B mount -t tmpfs shm $N/dev/shm
$B mount -t tmpfs run $N/run
$B mkdir -p $N/run/lock $N/run/rpcbind $N/run/sendsigs.omit.d $N/run/agent
# /tmp is the guest's own: what lies in the host's /tmp is nobody's business here, except the directories shared by name.
$B mount -t tmpfs -o mode=1777 tmp $N/tmp
# This project is there too, if that is where it was cloned.
case $vm_repo in /tmp/*)
    $B mkdir -p $N$vm_repo
    $B mount --bind /host$vm_repo $N$vm_repo || echo "guest init: $vm_repo is not there"
    ;;
esac

# Directories shared read-write: vm_shares=DIR,DIR,... are the 9p tags rw0, rw1, ...
i=0
for dir in $($B echo $vm_shares | $B tr , ' '); do
    $B mkdir -p $N$dir
    $B mount -t 9p -o $P9,cache=none,access=any rw$i $N$dir || echo "guest init: share $dir failed"
    i=$((i + 1))
done

$B ip link set lo up
if [ -n "$vm_ip" ]; then
    $B ip addr add $vm_ip dev eth0
    [ -n "$vm_mtu" ] && $B ip link set eth0 mtu $vm_mtu
    $B ip link set eth0 up
    [ -n "$vm_gw" ] && $B ip route add default via $vm_gw
fi
$B echo ${vm_name:-guest} >/proc/sys/kernel/hostname
# The packages were unpacked, not installed: make the accounts their postinst would have made.
$B echo "_rpc:x:106:65534::/run/rpcbind:/usr/sbin/nologin" >>$N/etc/passwd
$B echo "statd:x:107:65534::/var/lib/nfs:/usr/sbin/nologin" >>$N/etc/passwd
$B echo "127.0.0.1 localhost ${vm_name:-guest}" >$N/etc/hosts
# Names must never wait for a resolver that cannot be reached.
$B rm -f $N/etc/resolv.conf
$B true >$N/etc/resolv.conf
[ -e $N/etc/mtab ] || $B ln -s /proc/self/mounts $N/etc/mtab

$B cp $B $N/run/busybox
$B cp /agent.sh $N/run/agent.sh
$B cat >$N/run/stage2 <<X
#!/run/busybox sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
cd /
ulimit -c 0
for port in /sys/class/virtio-ports/*; do
    case \$(/run/busybox cat \$port/name) in
    agent*) /bin/bash /run/agent.sh /dev/\${port##*/} </dev/null >/dev/console 2>&1 & ;;
    esac
done
[ -n "$vm_systemd" ] && exec /lib/systemd/systemd
while :; do wait; /run/busybox sleep 3600; done
X
if [ -n "$vm_systemd" ]; then
    # The host may be a container; the guest is none, and systemd is to heed the kernel's command line.
    $B rm -f $N/.dockerenv
    # What a guest has no use for, and an emulated one no time.
    $B mkdir -p $N/run/systemd/system
    for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket \
        systemd-udevd-kernel.socket systemd-timesyncd.service systemd-firstboot.service systemd-sysusers.service \
        systemd-pstore.service systemd-update-utmp.service systemd-journal-flush.service e2scrub_reap.service \
        getty.target timers.target remote-fs.target nfs-client.target dev-hugepages.mount dev-mqueue.mount \
        sys-kernel-debug.mount sys-kernel-tracing.mount proc-sys-fs-binfmt_misc.automount; do
        $B ln -sf /dev/null $N/run/systemd/system/$unit
        # What the host has enabled stands in /etc, which goes before /run.
        $B rm -f $N/etc/systemd/system/$unit $N/etc/systemd/system/*.wants/$unit
    done
fi
$B chmod 755 $N/run/stage2
$B umount /proc /sys /dev
# switch_root, not chroot: the kernel starts /sbin/modprobe and /sbin/request-key in init's own root.
exec $B switch_root /newroot /run/stage2
