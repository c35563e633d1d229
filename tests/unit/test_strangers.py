"""Hosts that no export is for: NULL is answered, and nothing else; no state is made, on any path."""

from __future__ import annotations

import logging
import struct
from pathlib import Path

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.protocol.mount3 import MOUNT_PROGRAM, MOUNTPROC3_MNT
from rpcrdma.log_limits import LIMIT
from tests.support.hosts import Site, on_site, rpc_call, verdict, write_config
from tests.support.nfs4 import Client4

HOST, STRANGER = "127.0.0.1", "127.0.0.9"
ONLY = f"['{HOST}']"
BADCRED = (1, 1, 1)
"""MSG_DENIED, AUTH_ERROR, AUTH_BADCRED (RFC 5531 section 9)."""


async def refused(client: Client4, *operations: object) -> bool:
    """Whether a COMPOUND is denied."""
    return verdict(await client.server.call(None, client.message(*operations))) == BADCRED  # type: ignore[arg-type]


def introduction(name: bytes, verifier: bytes = b"verifier") -> tuple[int, object]:
    owner = p.client_owner4(verifier, name)
    return p.OP_EXCHANGE_ID, p.EXCHANGE_ID4args(owner, 0, p.state_protect4_a(p.state_protect_how4.SP4_NONE), [])


def test_a_stranger_is_answered_to_null_and_told_no_to_mnt(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        asked = 0
        for service in ("nfs", "mountd", "nlm", "nsm"):
            stranger, host = await site.wire(STRANGER, service), await site.wire(HOST, service)
            for number in site.daemon.dispatchers[service].rows:
                reply = await stranger.call(None, rpc_call(*number))
                if number[2] == 0:
                    assert verdict(reply) == (0, 0)
                elif number == (MOUNT_PROGRAM, 3, MOUNTPROC3_MNT):
                    continue
                else:
                    assert verdict(reply) == BADCRED, number
                    asked += 1
            reply = await host.call(None, rpc_call(*next(iter(site.daemon.dispatchers[service].rows))))
            assert verdict(reply) == (0, 0)
        assert asked > 40
        wire = await site.wire(STRANGER, "mountd")
        for path in (b"/export", b"/nothing"):
            name = struct.pack(">I", len(path)) + path + bytes(-len(path) & 3)
            reply = await wire.call(None, rpc_call(MOUNT_PROGRAM, 3, MOUNTPROC3_MNT, name))
            assert (verdict(reply), reply[24:]) == ((0, 0), struct.pack(">I", 13)), "MNT3ERR_ACCES, whatever there is"

    on_site(tmp_path, test, ONLY)


def test_a_stranger_is_in_the_log_with_the_line_that_would_admit_it_and_on_the_live_screen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By either version; a mount of NFSv3 comes no further than to MNT."""

    async def test(site: Site) -> None:
        wire = await site.wire(STRANGER, "mountd")
        await wire.call(None, rpc_call(MOUNT_PROGRAM, 3, MOUNTPROC3_MNT, struct.pack(">I8s", 7, b"/export")))
        notes = site.daemon._statistics.snapshot()["notes"]
        assert not [note for note in notes if STRANGER in note]
        assert await refused(await site.client(STRANGER), introduction(b"client"))
        notes = site.daemon._statistics.snapshot()["notes"]
        assert [note for note in notes if note.startswith(f"{STRANGER} is refused: no export is for it (")]
        entry = (tmp_path / "exports.yaml").read_text().splitlines().index(f"    clients: {ONLY}") + 1
        mount, call = [record.getMessage() for record in caplog.records if " is refused" in record.getMessage()]
        place = f"{tmp_path}/exports.yaml:{entry}"
        assert mount == (
            f"{STRANGER} is refused /export (NFSv3 over tcp): no export is for it; to admit it, write for /export "
            f"({place}): clients: [{HOST}, {STRANGER}]"
        )
        assert call == (
            f"{STRANGER} is refused: no export is for it; to admit it, add it to clients: of /export ({place})"
        )

    LIMIT.reset()
    on_site(tmp_path, test, ONLY)


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_a_stranger_leaves_no_client_record(tmp_path: Path, minor: int) -> None:
    async def test(site: Site) -> None:
        stranger = await site.client(STRANGER, minor, name=b"flood")
        callback = p.cb_client4(0x40000000, p.netaddr4(b"tcp", b"127.0.0.1.0.0"))
        for number in range(20):
            name = b"flood %d" % number
            asked = introduction(name)
            if not minor:
                asked = p.OP_SETCLIENTID, p.SETCLIENTID4args(p.nfs_client_id4(b"verifier", name), callback, 1)
            assert await refused(stranger, asked)
        assert site.engine.clients.all() == []
        client = await (await site.client(HOST, minor)).connect()
        assert await client.run(p.OP_PUTROOTFH) is not None

    on_site(tmp_path, test, ONLY, "  nfs4: {limits: {clients: 4, unconfirmed_clients: 4}, grace_time: 0}\n")


def test_a_strangers_word_does_not_end_a_session(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST)).connect()
        stranger = await site.client(STRANGER)
        assert await refused(stranger, introduction(client.name, b"rebooted"))
        for known in (client.session, bytes(16)):
            assert await refused(stranger, (p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(known)))
            assert await refused(stranger, (p.OP_SEQUENCE, p.SEQUENCE4args(known, 2, 0, 0, False)))
        assert await client.run(p.OP_PUTROOTFH) is not None

    on_site(tmp_path, test, ONLY)


def test_who_has_become_a_stranger_is_refused_natively_too_and_let_in_again(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(HOST)).connect()
        row = site.daemon.dispatchers["nfs"].rows[100003, 4, 1]

        async def answered_natively() -> bool:
            before = row.native_calls
            await client.run(p.OP_PUTROOTFH)
            await client.run()
            return bool(row.native_calls > before)

        assert await answered_natively()
        write_config(tmp_path, f"['{STRANGER}']")
        assert await site.daemon.reload()
        before = row.native_calls
        lone = client.in_session()
        assert await refused(client, *lone)
        assert row.native_calls == before
        write_config(tmp_path, "['127.0.0.0/8']")
        assert await site.daemon.reload()
        client.sequence -= 1
        assert await answered_natively()

    on_site(tmp_path, test, ONLY)


def test_the_log_says_once_what_would_admit_a_host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(site: Site) -> None:
        for _ in range(3):
            assert await refused(await site.client(STRANGER), introduction(b"a"))
        for number in range(100):
            assert await refused(await site.client(f"127.0.1.{number}"), introduction(b"a"))

    with caplog.at_level(logging.WARNING):
        on_site(tmp_path, test, ONLY)
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    place = f"clients: of /export ({tmp_path}/exports.yaml:9)"
    assert lines[0] == f"{STRANGER} is refused: no export is for it; to admit it, add it to {place}"
    assert sum(STRANGER in line for line in lines) == 1
    assert len(lines) < 70, "many strangers do not fill the log"
    assert "more hosts" in lines[-1]


def test_a_referral_lets_its_clients_in(tmp_path: Path) -> None:
    async def test(site: Site) -> None:
        client = await (await site.client(STRANGER)).connect()
        *_, listing = await client.run(p.OP_PUTROOTFH, p.OP_GETFH)
        assert listing.resok4.object

    more = f"  - {{pseudo: /away, referral: ['other.example.org:/x'], clients: ['{STRANGER}']}}\n"
    on_site(tmp_path, test, ONLY, more=more)
