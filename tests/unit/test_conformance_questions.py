"""The questions of ``rdma-nfsd conformance`` that are not in one message: callbacks, version Two, random messages."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from nfsd.conformance import version_two
from nfsd.conformance.callbacks import CB_RECALL, CB_SEQUENCE, Callback
from nfsd.conformance.link import TRANSPORTS, Absent, Differs, Target
from nfsd.conformance.randomly import judged, spoilt
from nfsd.conformance.run import put
from nfsd.protocol import nfs4 as p
from rpcrdma.memory import Pool
from rpcrdma.peer.wire import ReplyHeader, header, words
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from rpcrdma.xdr import Encoder
from tests.peer.rig import Rig
from tests.support.callbacks import CallbackEnd

SESSION = bytes(range(16))


def callback(*operations):
    e = Encoder()
    for word in (77, 0, 2, 0x40000000, 1, 1, 0, 0, 0, 0):
        e.uint32(word)
    e.opaque(b"tag")
    for word in (1, 0, len(operations)):
        e.uint32(word)
    for number, arguments in operations:
        e.uint32(number)
        e.encode(p.CALLBACK_OPERATIONS[number].arguments, arguments)
    return e.getvalue()


def test_a_recall_is_read_behind_referring_calls_and_answered_as_a_client_does():
    calls = [p.referring_call_list4(SESSION, [p.referring_call4(1, 2), p.referring_call4(3, 4)])]
    sequence = p.CB_SEQUENCE4args(SESSION, 5, 3, 15, False, calls)
    recall = p.CB_RECALL4args(p.stateid4(1, b"other octets"), False, b"the handle")
    octets = callback((p.OP_CB_SEQUENCE, sequence), (p.OP_CB_RECALL, recall))
    found = Callback.parse(octets, None)
    assert (found.operations, found.sequence) == ([CB_SEQUENCE, CB_RECALL], (SESSION, 5, 3))
    assert found.recalled == b"the handle"
    answer = found.answer()
    assert answer[:24] == words(77, 1, 0, 0, 0, 0)
    # As the tests' own client answers it, but for the tag and the slots that it has.
    theirs = asyncio.run(
        CallbackEnd().answer(callback((p.OP_CB_SEQUENCE, p.CB_SEQUENCE4args(SESSION, 1, 3, 15, False, []))))
    )
    assert len(theirs) - len(b"tag\0") + 8 == len(answer)


def test_an_operation_that_is_not_known_is_not_taken_for_a_recall():
    found = Callback.parse(callback((p.OP_CB_NOTIFY_LOCK, p.CB_NOTIFY_LOCK4args(b"h", p.lock_owner4(1, b"o")))), None)
    assert (found.recalled, found.operations) == (b"", [p.OP_CB_NOTIFY_LOCK])
    assert found.answer()[-8:] == words(p.OP_CB_NOTIFY_LOCK, p.NFS4ERR_NOTSUPP)
    with pytest.raises(Differs, match="decoded"):
        Callback.parse(
            callback((p.OP_CB_RECALL, p.CB_RECALL4args(p.stateid4(1, b"other octets"), False, b"h")))[:-9], None
        )


CALL = header(7) + bytes(60)


@pytest.mark.parametrize(
    ("octets", "found", "said"),
    [
        (CALL, [], ""),
        (CALL, [ReplyHeader(7, 1, 1, 0)], ""),
        (CALL, [ReplyHeader(7, 1, 1, 4, error=2)], "written to"),
        (CALL, [ReplyHeader(7, 1, 1, 0), ReplyHeader(7, 1, 1, 0)], "2 answers"),
        (CALL, [ReplyHeader(8, 1, 1, 0)], "no call's"),
        (CALL, [ReplyHeader(7, 1, 1, 3)], "procedure 3"),
        (header(7, procedure=4), [ReplyHeader(7, 1, 1, 4, error=2)], "an error is answered"),
    ],
)
def test_what_no_server_may_answer_to_any_octets(octets, found, said):
    area = SimpleNamespace(writable=True, memory=b"\xee\xee!")
    if not said:
        judged(octets, found, [area])
        return
    with pytest.raises(Differs, match=said):
        judged(octets, found, [area])


def test_random_messages_are_made_of_their_seed_and_are_of_all_kinds():
    def made(seed):
        chance = random.Random(seed)
        return [spoilt(chance, CALL, 28) for _ in range(300)]

    assert made(1) == made(1) != made(2)
    octets = made(1)
    assert octets.count(CALL) in range(20, 120)
    assert len({len(one) for one in octets}) > 20
    assert sum(one[:28] != CALL[:28] for one in octets) > 60


def test_no_question_about_version_two_is_passed_by_a_server_of_something_else():
    """A server with version Two and no NFS: what is asked is asked of NFS's replies."""
    questions = [question for question in TRANSPORTS if question.__module__ == version_two.__name__]

    async def main():
        async with Rig(provider=SoftIwarp) as rig:
            pool = Pool(256 << 20)
            provider = SoftIwarp(pool)
            found = {}
            for question in questions:
                target = Target(provider, pool.account(64 << 20), rig.listener.address, b"root")
                try:
                    found[question.__name__] = await put(question, target)
                except Absent:
                    found[question.__name__] = ""
            await provider.close()
            return found

    found = asyncio.run(main())
    assert len(found) == len(questions) == 8
    assert [name for name, differs in found.items() if not differs] == []
