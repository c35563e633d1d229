"""A guest whose kernel can speak TLS: tlshd of Debian's ktls-utils makes its handshakes (:mod:`tests.vm.build`)."""

from __future__ import annotations

import trustme

from tests.vm.build import TLS_TREE
from tests.vm.guest import Guest

_OWN = "/etc/tls"
"""Where tlshd finds the client's files, below its own root."""
_CONFIGURATION = f"""\
[debug]
loglevel=1
[authenticate.client]
x509.truststore={_OWN}/roots.pem
x509.certificate={_OWN}/client.pem
x509.private_key={_OWN}/client.key
"""


def start_tlshd(guest: Guest) -> None:
    """Load what TLS needs, and start tlshd. Its log is /tmp/tlshd."""
    guest.run(
        f"mkdir -p /{TLS_TREE}{_OWN} && cat >/{TLS_TREE}/etc/tlshd.conf <<'X'\n{_CONFIGURATION}X\n"
        "modprobe tls && modprobe sunrpc || exit\n"
        f"setsid chroot /{TLS_TREE} /usr/sbin/tlshd -s -c /etc/tlshd.conf </dev/null >/tmp/tlshd 2>&1 &\n"
        "sleep 1; pgrep -l tlshd || { cat /tmp/tlshd; exit 1; }",
        timeout=120,
        label="start tlshd",
    )


def put(guest: Guest, name: str, blob: trustme.Blob) -> None:
    """Write one of the client's files: roots.pem, client.pem, client.key."""
    path = f"/{TLS_TREE}{_OWN}/{name}"
    text = blob.bytes().decode()
    guest.run(f"umask 077; rm -f {path}; cat >{path} <<'X'\n{text}X\n", label=f"write {path}")
