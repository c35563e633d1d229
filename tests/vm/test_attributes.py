"""Attributes as programs on a Linux client see them over proto=rdma: ACLs with their tools, names, space, referrals."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.build import REPO
from tests.vm.guest import Guest
from tests.vm.marks import ANY_V4
from tests.vm.mounts import complaints, load_siw, mount, rdma_options, rdma_transports, umount
from tests.vm.network import Namespace, Network
from tests.vm.server import Server

POINT = "/mnt/nfs"
ELSEWHERE = "10.99.0.201"
READER, STRANGER = 1234, 1235
"""Users of the guest without a name."""
AS = "setpriv --reuid {0} --regid {0} --clear-groups "


def posix_acl(path: Path, kind: str = "access") -> list[tuple[int, int, int]] | None:
    """The ACL of a file as the server's file system has it: (tag, permissions, id); None: the mode says it all."""
    try:
        value = os.getxattr(path, f"system.posix_acl_{kind}")
    except OSError:
        return None
    return list(struct.iter_unpack("<HHI", value[4:]))


@pytest.fixture(scope="module")
def elsewhere(network: Network, directory: Path) -> Iterator[Server]:
    """Another server, on another address of the same host."""
    assert isinstance(network, Namespace), "this test needs a network namespace (root)"
    subprocess.run(["ip", "-n", network.name, "addr", "add", f"{ELSEWHERE}/24", "dev", "br0"], check=True)
    with Server(directory / "elsewhere", network, address=ELSEWHERE) as server:
        (server.export / "found").write_text("here it is\n")
        yield server


@pytest.fixture(scope="module")
def main_server(network: Network, directory: Path, elsewhere: Server) -> Iterator[Server]:
    """The server under test, which knows where the other one is, and users by name."""
    referral = {"pseudo": "/away", "referral": [f"{ELSEWHERE}:/export"]}
    settings = {"nfs4": {"id_names": "names", "domain": "example.org"}}
    with Server(directory / "server", network, server=settings, more=[referral]) as server:
        yield server


@pytest.fixture(scope="module")
def guest(network: Network, main_server: Server) -> Iterator[Guest]:
    with Guest("client-attributes", network, memory=1024, time_limit=840) as booted:
        load_siw(booted)
        yield booted
        assert not complaints(booted)
    main_server.assert_running()


@pytest.mark.parametrize("version", ANY_V4)
def test_nfs4_acls_with_the_usual_tools(guest: Guest, main_server: Server, version: str) -> None:
    mount(guest, main_server, version)
    work, here = f"{POINT}/acl-{version}", main_server.export / f"acl-{version}"
    guest.run(f"mkdir {work} && echo secret >{work}/file && chmod 600 {work}/file")
    entries = guest.run(f"nfs4_getfacl {work}/file").output.split()
    assert entries[-3:] == ["A::OWNER@:rwatTcCy", "A::GROUP@:tcy", "A::EVERYONE@:tcy"]
    for user in (READER, STRANGER):
        assert guest.run(AS.format(user) + f"cat {work}/file", check=False).rc
    guest.run(f"nfs4_setfacl -a A::{READER}:r {work}/file")
    assert (2, 4, READER) in (posix_acl(here / "file") or [])
    shown = guest.run(f"nfs4_getfacl {work}/file").output
    assert f"A::{READER}:rtcy" in shown
    assert guest.run(AS.format(READER) + f"cat {work}/file").output == "secret\n"
    assert guest.run(AS.format(STRANGER) + f"cat {work}/file", check=False).rc
    assert guest.run(AS.format(READER) + f"sh -c 'echo more >>{work}/file'", check=False).rc
    # What was got is set again, and nothing has changed.
    before = posix_acl(here / "file")
    guest.run(f"nfs4_getfacl {work}/file >/tmp/acl && nfs4_setfacl -S /tmp/acl {work}/file")
    assert posix_acl(here / "file") == before
    # The mode of a file with an ACL is bounded by it and bounds it.
    guest.run(f"chmod 600 {work}/file")
    assert guest.run(AS.format(READER) + f"cat {work}/file", check=False).rc
    # Handed down from a directory.
    guest.run(f"mkdir {work}/dir && chmod 755 {work}/dir && nfs4_setfacl -a A:fd:{READER}:rX {work}/dir")
    assert (2, 5, READER) in (posix_acl(here / "dir", "default") or [])
    guest.run(f"umask 077; echo inherited >{work}/dir/file && mkdir {work}/dir/sub")
    assert (2, 5, READER) in (posix_acl(here / "dir" / "file") or [])
    assert (2, 5, READER) in (posix_acl(here / "dir" / "sub", "default") or [])
    # RFC 8275: with 4.2 the server knows of the default ACL and leaves the umask out; before, the client cannot.
    reading = guest.run(AS.format(READER) + f"cat {work}/dir/file", check=False)
    assert (reading.rc == 0) == (version == "4.2"), reading.output
    assert guest.run(f"nfs4_setfacl -a U::EVERYONE@:r {work}/file", check=False).rc, "there are no audits here"
    umount(guest)


def test_posix_acls_on_nfsv3(guest: Guest, main_server: Server) -> None:
    mount(guest, main_server, "3", extra="acl")
    work, here = f"{POINT}/acl-3", main_server.export / "acl-3"
    guest.run(f"mkdir {work} && echo secret >{work}/file && chmod 600 {work}/file")
    assert "user::rw-" in guest.run(f"getfacl -n {work}/file").output
    guest.run(f"setfacl -m u:{READER}:r {work}/file")
    assert (2, 4, READER) in (posix_acl(here / "file") or [])
    assert f"user:{READER}:r--" in guest.run(f"getfacl -n {work}/file").output
    assert guest.run(AS.format(READER) + f"cat {work}/file").output == "secret\n"
    assert guest.run(AS.format(STRANGER) + f"cat {work}/file", check=False).rc
    guest.run(f"mkdir {work}/dir && setfacl -d -m u:{READER}:rX {work}/dir")
    assert f"default:user:{READER}:r-x" in guest.run(f"getfacl -n {work}/dir").output
    guest.run(f"echo inherited >{work}/dir/file && mkdir {work}/dir/sub")
    assert (2, 5, READER) in (posix_acl(here / "dir" / "file") or [])
    assert (2, 5, READER) in (posix_acl(here / "dir" / "sub", "default") or [])
    guest.run(f"setfacl -b {work}/file && setfacl -k {work}/dir")
    assert posix_acl(here / "file") is None
    assert posix_acl(here / "dir", "default") is None
    # An ACL of 300 entries needs a reply chunk.
    entries = ",".join(f"u:{uid}:r" for uid in range(5000, 5300))
    guest.run(f"setfacl -m {entries} {work}/file && getfacl -n {work}/file | grep -c '^user:5' | grep -x 300")
    assert len(posix_acl(here / "file") or []) == 304
    transport = rdma_transports(guest)[0]
    assert transport.bad_replies == 0
    umount(guest)


@pytest.mark.parametrize("version", ["4.0", "4.2"])
def test_owners_by_name(guest: Guest, main_server: Server, version: str) -> None:
    # Both sides have the same users; what they tell each other is names, or chown and ls would show nobody.
    guest.run(
        "mkdir -p /etc/request-key.d && printf '[General]\\nDomain = example.org\\n' >/etc/idmapd.conf && "
        "echo 'create id_resolver * * /usr/sbin/nfsidmap -t 600 %k %d' >/etc/request-key.d/id_resolver.conf && "
        "echo N >/sys/module/nfs/parameters/nfs4_disable_idmapping"
    )
    mount(guest, main_server, version)
    file, here = f"{POINT}/named-{version}", main_server.export / f"named-{version}"
    guest.run(f"touch {file} && chown games:daemon {file}")
    status = here.stat()
    assert (here.owner(), here.group()) == ("games", "daemon"), (status.st_uid, status.st_gid)
    assert guest.run(f"stat -c '%U %G' {file}").output == "games daemon\n"
    os.chown(here, 2, 3)
    shown = guest.run(f"umount {POINT}; mount -o {rdma_options(version)} {main_server.address}:/export {POINT}; "
                      f"stat -c '%u %g' {file}").output  # fmt: skip
    assert shown == "2 3\n"
    assert "id_resolver" in guest.run("cat /proc/keys").output, "the client asked for no names"
    # Who has no name goes by number.
    os.chown(here, READER, READER)
    umount(guest)
    mount(guest, main_server, version)
    assert guest.run(f"nfs4_getfacl {file} >/dev/null; stat -c '%u' {file}").output in (f"{READER}\n", "65534\n")
    guest.run("echo Y >/sys/module/nfs/parameters/nfs4_disable_idmapping")
    umount(guest)


@pytest.mark.parametrize("version", ["3", *ANY_V4])
def test_df_shows_the_servers_space(guest: Guest, main_server: Server, version: str) -> None:
    mount(guest, main_server, version)
    told = guest.run(f"stat -f -c '%S %b %f %a %c %d' {POINT}").output.split()
    size, blocks, free, available, files, files_free = map(int, told)
    mine = os.statvfs(main_server.export)
    assert blocks * size == pytest.approx(mine.f_blocks * mine.f_frsize, rel=0.001)
    assert free * size == pytest.approx(mine.f_bfree * mine.f_frsize, rel=0.05)
    assert available * size == pytest.approx(mine.f_bavail * mine.f_frsize, rel=0.05)
    assert free - available == pytest.approx((mine.f_bfree - mine.f_bavail) * mine.f_frsize / size, rel=0.05)
    assert files == mine.f_files
    assert files_free == pytest.approx(mine.f_ffree, rel=0.05)
    assert guest.run(f"getconf NAME_MAX {POINT}").output == "255\n"
    umount(guest)


@pytest.mark.parametrize("version", ANY_V4)
def test_a_referral_is_followed(guest: Guest, main_server: Server, elsewhere: Server, version: str) -> None:
    guest.run(
        f"mkdir -p {POINT} && mount -t nfs -o {rdma_options(version)} {main_server.address}:/ {POINT}", timeout=90
    )
    assert guest.run(f"ls {POINT}").output.split() == ["away", "export"]
    assert guest.run(f"cat {POINT}/away/found", timeout=90).output == "here it is\n"
    guest.run(f"echo from {version} >{POINT}/away/made-{version}")
    assert (elsewhere.export / f"made-{version}").read_text() == f"from {version}\n"
    line = guest.run(f"grep ' {POINT}/away ' /proc/mounts").output
    assert f"addr={ELSEWHERE}" in line
    assert "proto=rdma" in line
    assert guest.run(f"ls -l {POINT}/away").output.count("made-") >= 1
    guest.run(f"umount {POINT}/away && umount {POINT}", timeout=60)


@pytest.mark.long
def test_quotas_and_case_of_file_systems_of_a_stock_kernel(guest: Guest) -> None:
    guest.run("modprobe loop; modprobe quota_v2; modprobe ext4")
    guest.run(f"PYTHONPATH={REPO} {sys.executable} {REPO}/tests/vm/inside/file_systems.py /tmp/made", timeout=300)
