"""A guest that is a client of a Kerberos realm: its files, its names, its clock, and rpc.gssd."""

from __future__ import annotations

import base64
import time

from tests.support.kdc import Realm
from tests.vm.guest import Guest

KDC_PORT = 88
HOST, CLIENT = "server.example.org", "client.example.org"
"""The names of the server and of the guest."""

_KRB5_CONF = """\
[libdefaults]
    default_realm = {realm}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
    default_ccache_name = FILE:/tmp/krb5cc_%{{uid}}
[realms]
    {realm} = {{
        kdc = {host}:{port}
    }}
[domain_realm]
    .example.org = {realm}
"""

_GSSD = """\
echo {client} >/proc/sys/kernel/hostname
printf '127.0.0.1 localhost\\n%s {client} client\\n%s {host} server\\n' {address} {server} >/etc/hosts
date -u -s @{now} || exit
modprobe rpcsec_gss_krb5 && modprobe nfs || exit
mkdir -p /run/rpc_pipefs && mount -t rpc_pipefs sunrpc /run/rpc_pipefs || exit
setsid rpc.gssd -f -vvv -rr -p /run/rpc_pipefs </dev/null >/tmp/gssd 2>&1 &
sleep 1; pgrep -l rpc.gssd || {{ cat /tmp/gssd; exit 1; }}
"""


def join(guest: Guest, realm: Realm, server: str) -> None:
    """Make the guest a client of the realm whose KDC is at the server's address. gssd's log is /tmp/gssd."""
    conf = _KRB5_CONF.format(realm=realm.name, host=server, port=realm.port)
    keytab = realm.keytab(f"host/{CLIENT}", path=realm.directory / "client.keytab").read_bytes()
    guest.run(
        f"cat >/etc/krb5.conf <<'X'\n{conf}X\n"
        f"umask 077; base64 -d >/etc/krb5.keytab <<<{base64.b64encode(keytab).decode()}",
        label="the client's files",
    )
    script = _GSSD.format(client=CLIENT, host=HOST, address=guest.address, server=server, now=int(time.time()))
    guest.run(script, timeout=200, label="start rpc.gssd")
