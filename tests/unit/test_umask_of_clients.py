"""``umask``: bits that the modes of new files lose, by client; a default ACL of the directory goes before it."""

import os
from pathlib import Path

import pytest

from nfsd.config_file import ConfigError, parse
from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import MKNOD3args, SETATTR3args, diropargs3, ftype3, mknoddata3, nfsstat3
from nfsd.v4.attributes import words_of
from nfsd.vfs import posix_acl
from nfsd.vfs.posix_acl import AclEntry, AclTag
from tests.nfs3_client import attributes
from tests.support.served import Served, run

OTHER = "127.0.0.2"
EXPORTS = f"""\
  - path: .
    pseudo: /all
    squash: none
    umask: 022
    clients: ["*", {{host: {OTHER}, umask: 077}}]
"""


def prepare(tmp_path: Path) -> Path:
    top = tmp_path / "exported"
    for name in ("plain", "with"):
        (top / name).mkdir(parents=True)
    entries = (*posix_acl.from_mode(0o775), AclEntry(AclTag.USER, 7, 99), AclEntry(AclTag.MASK, 7))
    os.setxattr(top / "with", "system.posix_acl_default", posix_acl.encode(posix_acl.in_order(entries)))
    return top


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_nfs3(tmp_path: Path) -> None:
    top = prepare(tmp_path)

    async def test(server: Served) -> None:
        for host, file, directory in (("127.0.0.1", 0o644, 0o755), (OTHER, 0o600, 0o700)):
            root = await server.mount("/all", host)
            client = await server.nfs3(host=host)
            for name in ("plain", "with"):
                there = await client.lookup(root, name.encode())
                made = host.encode()
                # Twice: the second one knows the directory, as the path that answers natively does.
                for number in range(2):
                    await client.create(there, made + b"f%d" % number, 0o666)
                    await client.mkdir(there, made + b"d%d" % number, 0o777)
                    fifo = mknoddata3(ftype3.NF3FIFO, pipe_attributes=attributes(mode=0o666))
                    result = await client.nfs("MKNOD", MKNOD3args(diropargs3(there, made + b"p%d" % number), fifo))
                    assert result.status == nfsstat3.NFS3_OK
                    found = [mode_of(top / name / f"{host}{kind}{number}") for kind in "fdp"]
                    expected = [file, directory, file] if name == "plain" else [0o664, 0o775, 0o664]
                    assert found == expected, (host, name, number)
            # A change of mode is nobody's creation.
            file3 = await client.lookup(there, made + b"f0")
            changed = await client.nfs("SETATTR", SETATTR3args(file3, attributes(mode=0o666), None))
            assert changed.status == nfsstat3.NFS3_OK
            assert mode_of(top / "with" / f"{host}f0") == 0o666

    run(tmp_path, EXPORTS.replace("path: .", "path: exported"), test)


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_nfs4(tmp_path: Path, minor: int) -> None:
    top = prepare(tmp_path)

    async def test(server: Served) -> None:
        for host, file, directory in (("127.0.0.1", 0o644, 0o755), (OTHER, 0o600, 0o700)):
            client = await server.nfs4(minor, host=host)
            made = host.encode()
            for name in ("plain", "with"):
                for number in range(2):
                    wanted = p.fattr4(words_of(1 << p.FATTR4_MODE), (0o666).to_bytes(4, "big"))
                    opened = await client.open(f"/all/{name}", made + b"f%d" % number, create=wanted)
                    await client.close(*opened)
                    wanted = p.fattr4(words_of(1 << p.FATTR4_MODE), (0o777).to_bytes(4, "big"))
                    kind = p.createtype4(p.nfs_ftype4.NF4DIR)
                    create = (p.OP_CREATE, p.CREATE4args(kind, made + b"d%d" % number, wanted))
                    await client.run(*client.path(f"/all/{name}"), create)
                    found = [mode_of(top / name / f"{host}{kind}{number}") for kind in "fd"]
                    assert found == ([file, directory] if name == "plain" else [0o664, 0o775]), (host, name)
            if minor == 2:  # the client's own umask (RFC 8275) and the server's add up
                words = (0o666).to_bytes(4, "big") + (0o007).to_bytes(4, "big")
                wanted = p.fattr4(words_of(1 << p.FATTR4_MODE_UMASK), words)
                await client.open("/all/plain", made + b"u", create=wanted)
                assert mode_of(top / "plain" / f"{host}u") == file & ~0o007
            # Without a mode: what the server takes for one.
            nothing = p.fattr4(words_of(0), b"")
            await client.run(
                *client.path("/all/plain"),
                (p.OP_CREATE, p.CREATE4args(p.createtype4(p.nfs_ftype4.NF4DIR), made + b"n", nothing)),
            )
            assert mode_of(top / "plain" / f"{host}n") == directory

    run(tmp_path, EXPORTS.replace("path: .", "path: exported"), test)


def test_a_reload_changes_it(tmp_path: Path) -> None:
    top = prepare(tmp_path)

    async def test(server: Served) -> None:
        root = await server.mount("/all")
        client = await server.nfs3()
        await client.create(root, b"a", 0o666)
        await server.reload("umask: 022", "umask: 0")
        await client.create(root, b"b", 0o666)
        await server.reload("umask: 0\n", "umask: 07\n")
        await client.create(root, b"c", 0o666)
        assert [mode_of(top / name) for name in "abc"] == [0o644, 0o666, 0o660]

    run(tmp_path, EXPORTS.replace("path: .", "path: exported"), test)


@pytest.mark.parametrize(
    ("written", "meant"), [("022", 0o22), ("22", 0o22), ('"022"', 0o22), ("0o77", 0o77), ("0", 0), ("777", 0o777)]
)
def test_it_is_octal_however_it_is_written(tmp_path: Path, written: str, meant: int) -> None:
    text = f'server: {{listen: ["tcp://127.0.0.1:0"]}}\nexports:\n  - {{path: data, umask: {written}}}\n'
    assert parse(text, str(tmp_path / "exports.yaml")).exports[0].umask == meant


@pytest.mark.parametrize("written", ["8", "1000", "-1", "0x12", "u=rwx", "", "[1]", "{a: 1}"])
def test_what_is_no_umask(tmp_path: Path, written: str) -> None:
    text = f'server: {{listen: ["tcp://127.0.0.1:0"]}}\nexports:\n  - {{path: data, umask: {written}}}\n'
    with pytest.raises(ConfigError, match=r"exports\[0\]\.umask.*octal digits"):
        parse(text, str(tmp_path / "exports.yaml"))
