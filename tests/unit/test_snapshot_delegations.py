"""Files of snapshots are not delegated: by a name on the way to them, and where nothing can be written."""

import asyncio
import subprocess

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.delegations import (
    NONE,
    NONE_EXT,
    READ,
    READ_DELEGATION,
    delegated,
    prepared,
    with_two,
)

WANT_READ = p.OPEN4_SHARE_ACCESS_WANT_READ_DELEG


async def opened(client, directory, want=0):
    """The delegation that an OPEN of ``f`` there gives."""
    args = client.open_args(b"f", access=READ | want)
    *_, result = await client.run(*client.path(f"/0/{directory}"), (p.OP_OPEN, args))
    return result.resok4.delegation


@pytest.mark.parametrize("minor", [1, 2])
@pytest.mark.parametrize("name", [".snapshot", ".snapshots", ".zfs", ".snap"])
def test_by_name(tmp_path, minor, name):
    @prepared
    async def test(server, export, one, two):
        for directory in (export / name / "daily" / "deep", export / f"{name}x"):
            directory.mkdir(parents=True)
            (directory / "f").write_bytes(b"old")
        await delegated(one)
        assert (await opened(one, f"{name}/daily/deep")).delegation_type == NONE
        refused = await opened(one, f"{name}/daily/deep", WANT_READ)
        assert refused.delegation_type == NONE_EXT
        assert refused.od_whynone.ond_why == p.why_no_delegation4.WND4_NOT_SUPP_FTYPE
        assert (await opened(one, f"{name}x")).delegation_type == READ_DELEGATION
        assert server.engine.delegations.count == 2

    with_two(tmp_path, minor, test)


def test_a_file_of_that_name_is_a_file(tmp_path):
    @prepared
    async def test(server, export, one, two):
        (export / ".snapshot").write_bytes(b"")
        (export / ".snapshot").chmod(0o666)
        await delegated(one, b".snapshot")

    with_two(tmp_path, 1, test)


def test_what_is_mounted_read_only(tmp_path):
    export = tmp_path / "export"
    export.mkdir()
    (export / "f").write_bytes(b"content")
    (export / "f").chmod(0o666)
    made = subprocess.run(["mount", "--bind", export, export], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("nothing may be mounted here")
    try:

        async def test(server, export, one, two):
            for how, expected in (("ro", NONE), ("rw", READ_DELEGATION)):
                await asyncio.to_thread(subprocess.run, ["mount", "-o", f"remount,bind,{how}", export], check=True)
                assert (await opened(one, "")).delegation_type == expected, how

        with_two(tmp_path, 1, test, place=export)
    finally:
        subprocess.run(["umount", "--lazy", export], check=True)
