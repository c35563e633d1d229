"""The client's callback program: CB_COMPOUND as a server sends it, right and wrong (RFC 8881 section 20)."""

import asyncio
from typing import Any

import pytest

from nfsd.client.callbacks import BACK_CHANNEL, PROGRAM, Backchannel
from nfsd.protocol import nfs4 as p
from rpcrdma.rpc.program import Call, GarbageArguments, RpcCredential
from rpcrdma.xdr import Decoder, Encoder

SESSION = b"0123456789abcdef"
STATEID = p.stateid4(1, b"delegation  ")


class Rig:
    def __init__(self) -> None:
        self.backchannel = Backchannel()
        self.backchannel.session_is(SESSION, BACK_CHANNEL)
        self.recalled: list[p.stateid4] = []
        self.backchannel.recall = self._recall

    def _recall(self, stateid: p.stateid4) -> bool:
        self.recalled.append(stateid)
        return stateid == STATEID

    def raw(self, octets: bytes) -> bytes:
        procedure = self.backchannel.program().versions[p.NFS_CB][p.CB_COMPOUND]
        results = Encoder()
        call = Call(None, 1, PROGRAM, 1, 1, RpcCredential(0), Decoder(octets), results)  # type: ignore[arg-type]
        asyncio.run(procedure.handler(call))  # type: ignore[arg-type]
        return results.getvalue()

    def compound(self, *operations: tuple[int, Any], minor: int = 1) -> tuple[int, list[Any], bytes]:
        e = Encoder()
        e.opaque(b"tag")
        e.uint32(minor)
        e.uint32(0)
        e.uint32(len(operations))
        for number, arguments in operations:
            e.uint32(number)
            if number in p.CALLBACK_OPERATIONS and arguments is not None:
                e.encode(p.CALLBACK_OPERATIONS[number].arguments, arguments)
        octets = self.raw(e.getvalue())
        d = Decoder(octets)
        status = d.uint32()
        assert d.opaque(10) == b"tag"
        results = [d.decode(p.CALLBACK_OPERATIONS[d.uint32()].results) for _ in range(d.uint32())]
        d.finish(strict=True)
        return status, results, octets


def sequence(seqid: int, slot: int = 0, session: bytes = SESSION) -> tuple[int, Any]:
    return p.OP_CB_SEQUENCE, p.CB_SEQUENCE4args(session, seqid, slot, slot, False, [])


RECALL = (p.OP_CB_RECALL, p.CB_RECALL4args(STATEID, False, b"handle"))


def test_a_recall_is_answered_and_done_once() -> None:
    rig = Rig()
    status, results, octets = rig.compound(sequence(1), RECALL)
    assert status == p.NFS4_OK
    assert results[0].csr_resok4.csr_slotid == 0
    assert results[0].csr_resok4.csr_highest_slotid == BACK_CHANNEL.ca_maxrequests - 1
    assert rig.recalled == [STATEID]
    # The same request again: its reply again, and nothing is done (section 2.10.6.1).
    assert rig.compound(sequence(1), RECALL)[2] == octets
    assert rig.recalled == [STATEID]
    other = p.CB_RECALL4args(p.stateid4(1, b"unknown     "), False, b"handle")
    assert rig.compound(sequence(2), (p.OP_CB_RECALL, other))[0] == p.NFS4ERR_BAD_STATEID
    assert rig.backchannel.received == {"CB_RECALL": 2}


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (sequence(2), p.NFS4ERR_SEQ_MISORDERED),
        (sequence(1, slot=16), p.NFS4ERR_BADSLOT),
        (sequence(1, session=b"another session "), p.NFS4ERR_BADSESSION),
        (RECALL, p.NFS4ERR_OP_NOT_IN_SESSION),
    ],
)
def test_what_does_not_fit_the_session_is_refused(first: tuple[int, Any], status: int) -> None:
    rig = Rig()
    got, results, _ = rig.compound(first, RECALL)
    assert (got, len(results), rig.recalled) == (status, 1, [])
    assert rig.compound(sequence(1), RECALL)[0] == p.NFS4_OK, "the slot has moved on"


def test_only_one_sequence_and_only_first() -> None:
    rig = Rig()
    assert rig.compound(sequence(1), sequence(2))[0] == p.NFS4ERR_SEQUENCE_POS
    assert rig.compound(sequence(2), RECALL)[0] == p.NFS4_OK


def test_other_minor_versions_and_unknown_operations() -> None:
    rig = Rig()
    assert rig.compound(sequence(1), minor=0)[:2] == (p.NFS4ERR_MINOR_VERS_MISMATCH, [])
    status, results, _ = rig.compound(sequence(1), (99, None))
    assert (status, results[1].status) == (p.NFS4ERR_OP_ILLEGAL, p.NFS4ERR_OP_ILLEGAL)
    assert rig.compound(*[sequence(2)] * 17)[:2] == (p.NFS4ERR_TOO_MANY_OPS, [])


def test_what_this_client_never_asks_for_is_refused() -> None:
    rig = Rig()
    getattr_ = (p.OP_CB_GETATTR, p.CB_GETATTR4args(b"handle", [1]))
    assert rig.compound(sequence(1), getattr_)[0] == p.NFS4ERR_BADHANDLE
    recall_any = (p.OP_CB_RECALL_ANY, p.CB_RECALL_ANY4args(0, [1]))
    assert rig.compound(sequence(2), recall_any)[0] == p.NFS4_OK
    layouts = p.CB_LAYOUTRECALL4args(
        1, p.layoutiomode4.LAYOUTIOMODE4_ANY, False, p.layoutrecall4(p.layoutrecall_type4.LAYOUTRECALL4_ALL)
    )
    assert rig.compound(sequence(3), (p.OP_CB_LAYOUTRECALL, layouts))[0] == p.NFS4ERR_NOMATCHING_LAYOUT


def test_octets_that_are_no_compound_are_garbage() -> None:
    with pytest.raises(GarbageArguments):
        Rig().raw(b"\xff\xff\xff\xff")
