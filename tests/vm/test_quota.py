"""What ``quota`` of a Linux client says of a file system that is mounted by NFS, and what ``mount -o udp`` says.

One guest is server and client, and nothing but the server answers on port 111.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.vm.guest_server import GuestServer
from tests.vm.network import Namespace, Network

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

USER, OTHER = 1000, 1001
POINT = "/mnt/nfs"


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Namespace() as made:
        yield made


@pytest.fixture(scope="module")
def server(network: Network) -> Iterator[GuestServer]:
    made = GuestServer(network, ("siw",), server={"portmapper": True, "rquota": True}, listen=["tcp://*:2049"])
    made.guest.run(
        "umount /export; modprobe loop; modprobe quota_v2; modprobe ext4; truncate -s 64M /tmp/image && "
        "mkfs.ext4 -q -O quota /tmp/image && mount -o loop,usrquota,grpquota /tmp/image /export && "
        f"mkdir -m 777 /export/sub && setquota -u {USER} 8192 16384 100 200 /export && "
        f"dd if=/dev/zero of=/export/sub/data bs=1M count=4 && chown {USER}:{USER} /export/sub/data && sync && "
        f"mkdir -p {POINT} && ip link set lo up",
        timeout=120,
    )
    with made:
        yield made


def quota(server: GuestServer, user: int, *, rc: int = 0, asked: int = 0) -> str:
    """What ``quota -s`` says of the mount."""
    as_user = f"setpriv --reuid {user} --regid {user} --clear-groups " if user else ""
    script = f"{as_user}quota -s -v -w -u {asked or user or USER}"
    return server.guest.run(script, timeout=120, check=rc == 0, label=script).output


@pytest.mark.parametrize("version", ["3", "4.2"])
def test_quota_of_a_client(server: GuestServer, version: str) -> None:
    name = server.export_name(version)
    server.guest.run(f"mount -t nfs -o tcp,vers={version},nolock 127.0.0.1:{name} {POINT}", timeout=90)
    try:
        for user in (USER, 0):  # a user of himself, root of anybody
            (line,) = [one for one in quota(server, user).splitlines() if "127.0.0.1" in one]
            words = line.split()
            assert words[1:4] == ["4096K", "8192K", "16384K"], line
            assert words[4:7] in ([w, "100", "200"] for w in ("1", "2")), line
        refused = quota(server, OTHER, rc=1, asked=USER)
        assert "4096K" not in refused
    finally:
        server.guest.run(f"umount {POINT}", timeout=60)


def test_mount_by_udp_is_refused_on_both_sides(server: GuestServer) -> None:
    done = server.guest.run(f"mount -v -t nfs -o vers=3,udp,nolock 127.0.0.1:/export {POINT}", timeout=120, check=False)
    assert done.rc != 0
    assert "requested NFS version or transport protocol is not supported" in done.output
    log = server.guest.run("cat /srv/nfsd/log").output
    assert re.search(r"127\.0\.0\.1 asks for program 10000[35] version 3 over UDP, which is not served", log), log
