"""What an NFSv4.1 server may say to SEQUENCE and to operations, and what the client does then; a server of written
replies."""

import asyncio
import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nfsd.client.callbacks import Backchannel
from nfsd.client.compound import Op
from nfsd.client.rpc import Patience
from nfsd.client.session import Session
from nfsd.client.slots import SlotTable
from nfsd.protocol import nfs4 as p
from rpcrdma.xdr import Decoder, Encoder

SESSION = b"0123456789abcdef"
GETFH: list[Op] = [(p.OP_GETFH, None)]
Sent = tuple[p.SEQUENCE4args | None, list[int]]
"""The SEQUENCE of a COMPOUND and the numbers of its other operations."""


class Server:
    """Answers each COMPOUND with the next of its replies: (SEQUENCE's status, the status of what follows), or an
    error."""

    limit = 1 << 20
    connection = None

    def __init__(self, *replies: tuple[int, int] | Exception, flags: int = 0) -> None:
        self.replies = list(replies)
        self.flags = flags
        self.sent: list[Sent] = []
        self.backchannel = Backchannel()

    async def exchange(self, program: int, version: int, procedure: int, arguments: Encoder, **more: Any) -> Decoder:
        d = Decoder(arguments.getvalue())
        d.opaque(10)
        assert d.uint32() == 1
        operations = []
        sequence = None
        for _ in range(d.uint32()):
            number = d.uint32()
            kind = p.OPERATIONS[number].arguments
            decoded = d.decode(kind) if kind is not None else None
            if number == p.OP_SEQUENCE:
                sequence = decoded
            else:
                operations.append(number)
        self.sent.append((sequence, operations))
        await asyncio.sleep(0)
        reply = self.replies.pop(0) if self.replies else (0, 0)
        if isinstance(reply, Exception):
            raise reply
        results: list[tuple[int, Any]] = []
        if sequence is not None:
            results.append((p.OP_SEQUENCE, self._sequence(sequence, reply[0])))
        if not reply[0]:
            for number in operations:
                results.append((number, self._result(number, reply[1])))
                if reply[1]:
                    break
        e = Encoder()
        e.uint32(reply[0] or reply[1])
        e.opaque(b"")
        e.uint32(len(results))
        for number, result in results:
            e.uint32(number)
            e.encode(p.OPERATIONS[number].results, result)
        return Decoder(e.getvalue())

    def _sequence(self, args: p.SEQUENCE4args, status: int) -> p.SEQUENCE4res:
        if status:
            return p.SEQUENCE4res(p.nfsstat4(status))
        resok = p.SEQUENCE4resok(args.sa_sessionid, args.sa_sequenceid, args.sa_slotid, 3, 3, self.flags)
        return p.SEQUENCE4res(p.nfsstat4.NFS4_OK, resok)

    @staticmethod
    def _result(number: int, status: int) -> Any:
        if number == p.OP_GETFH:
            return p.GETFH4res(p.nfsstat4(status), None if status else p.GETFH4resok(b"handle"))
        if number == p.OP_BIND_CONN_TO_SESSION:
            ok = p.BIND_CONN_TO_SESSION4resok(SESSION, p.channel_dir_from_server4.CDFS4_BOTH, False)
            return p.BIND_CONN_TO_SESSION4res(p.nfsstat4(status), None if status else ok)
        raise AssertionError(number)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Slot and sequence id of every SEQUENCE."""
        return [(args.sa_slotid, args.sa_sequenceid) for args, _ in self.sent if args is not None]


class Rig:
    """A session with a server of written replies; recoveries are counted."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.slept: list[float] = []
        self.recoveries: list[bool] = []
        self.session = Session(server, Patience(60, self._sleep))  # type: ignore[arg-type]
        self._new_session()
        self.session.recover = self._recover

    def _new_session(self) -> None:
        self.session.sessionid, self.session.slots, self.session.stale = SESSION, SlotTable(4), False
        self.session.epoch += 1

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def _recover(self, epoch: int, *, session: bool = True) -> None:
        if epoch == self.session.epoch:
            self.recoveries.append(session)
            self._new_session()

    def run(self, work: Callable[[], Sequence[Op]] = lambda: GETFH, **how: Any) -> Any:
        async def test() -> Any:
            return await self.session.run(work, **how)

        return asyncio.run(test())


def test_a_request_that_succeeds_moves_its_slot_on() -> None:
    rig = Rig(Server())
    assert rig.run().results[0].resok4.object == b"handle"
    rig.run()
    assert rig.server.places == [(0, 1), (0, 2)]


def test_delay_of_sequence_repeats_the_same_request() -> None:
    """A SEQUENCE that fails leaves the slot as it was (RFC 8881 section 2.10.6.1.2)."""
    rig = Rig(Server((p.NFS4ERR_DELAY, 0), (p.NFS4ERR_DELAY, 0), (0, 0)))
    rig.run()
    assert rig.server.places == [(0, 1)] * 3
    assert rig.slept == [0.1, 0.2]


@pytest.mark.parametrize("status", [p.NFS4ERR_DELAY, p.NFS4ERR_GRACE])
def test_delay_of_an_operation_is_a_new_request(status: int) -> None:
    rig = Rig(Server((0, status), (0, 0)))
    rig.run()
    assert rig.server.places == [(0, 1), (0, 2)]
    assert rig.slept == [0.1]


def test_patience_has_an_end() -> None:
    rig = Rig(Server(*[(0, int(p.NFS4ERR_GRACE))] * 100))
    with pytest.raises(TimeoutError, match="restarted"):
        rig.run()
    assert sum(rig.slept) == pytest.approx(60)


def test_what_was_executed_without_a_cached_reply_is_executed_again_if_it_may_be() -> None:
    rig = Rig(Server((0, p.NFS4ERR_RETRY_UNCACHED_REP), (0, 0)))
    rig.run()
    assert rig.server.places == [(0, 1), (0, 2)]
    careful = Rig(Server((0, p.NFS4ERR_RETRY_UNCACHED_REP)))
    with pytest.raises(OSError, match="RETRY_UNCACHED_REP"):
        careful.run(cache=True)


@pytest.mark.parametrize(
    "status", [p.NFS4ERR_BADSESSION, p.NFS4ERR_DEADSESSION, p.NFS4ERR_SEQ_MISORDERED, p.NFS4ERR_BADSLOT]
)
def test_a_session_that_is_of_no_use_is_replaced_and_the_work_begun_anew(status: int) -> None:
    rig = Rig(Server((0, 0), (status, 0), (0, 0)))
    rig.run()
    built = []

    def build() -> list[Op]:
        built.append(rig.session.epoch)
        return GETFH

    rig.run(build)
    assert rig.recoveries == [True]
    assert built == [1, 2], "the operations of the old session were sent in the new one"
    assert rig.server.places == [(0, 1), (0, 2), (0, 1)]


def test_a_server_that_forgets_every_session_is_given_up() -> None:
    rig = Rig(Server(*[(int(p.NFS4ERR_BADSESSION), 0)] * 100))
    with pytest.raises(OSError, match="again and again") as caught:
        rig.run()
    assert caught.value.errno == errno.EREMOTEIO
    assert len(rig.recoveries) == 4


@pytest.mark.parametrize("status", [p.NFS4ERR_BAD_STATEID, p.NFS4ERR_EXPIRED, p.NFS4ERR_ADMIN_REVOKED])
def test_lost_opens_are_recovered_within_the_session(status: int) -> None:
    rig = Rig(Server((0, status), (0, 0)))
    rig.run()
    assert rig.recoveries == [False]


def test_an_unbound_connection_is_bound() -> None:
    rig = Rig(Server((p.NFS4ERR_CONN_NOT_BOUND_TO_SESSION, 0), (0, 0), (0, 0)))
    rig.run()
    assert [numbers for _, numbers in rig.server.sent] == [[p.OP_GETFH], [p.OP_BIND_CONN_TO_SESSION], [p.OP_GETFH]]
    assert rig.server.places == [(0, 1), (0, 1)]


def test_after_a_connection_that_is_lost_for_good_the_slot_is_not_used_again() -> None:
    """Nobody knows whether the request was executed: the next one begins with another session."""
    rig = Rig(Server(ConnectionError("gone"), (0, 0)))
    with pytest.raises(ConnectionError, match="gone"):
        rig.run()
    rig.run()
    assert rig.recoveries == [True]


def test_flags_of_sequence() -> None:
    rig = Rig(Server(flags=p.SEQ4_STATUS_CB_PATH_DOWN))
    down = []
    rig.session.on_path_down = lambda: down.append(1)
    rig.run()
    assert down == [1]
    # State that the server has lost is of interest to who has any.
    nothing = Rig(Server(flags=p.SEQ4_STATUS_RESTART_RECLAIM_NEEDED))
    nothing.run()
    nothing.run()
    assert nothing.recoveries == []


@pytest.mark.parametrize("octets", [b"", b"\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\x35", b"\0\0\0\0\0\0\0\0\0\0\0\xff"])
def test_replies_that_do_not_decode_are_errors_of_that_call(octets: bytes) -> None:
    class Nonsense(Server):
        async def exchange(self, *arguments: Any, **more: Any) -> Decoder:
            return Decoder(octets)

    with pytest.raises(OSError, match="do not decode"):
        Rig(Nonsense()).run()
