"""A mistake on one program's connection does not affect another connection of its host (RFC 8166 section 4.5.3)."""

from __future__ import annotations

from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from tests.peer import ERR_CHUNK, ERROR, MSG, NULL, Segment, accept_status, echo_arguments, header, rpc_call, run

XID = 77
BAD = Segment(0xBAD, 4, 0x1000)
NULL_CALL = header(XID) + rpc_call(XID, procedure=NULL)


def bad_call(xid: int = XID) -> bytes:
    return header(xid, writes=[[BAD]]) + rpc_call(xid, echo_arguments([b"data"]).octets)


def test_a_neighbours_refused_memory_costs_no_call_of_the_same_number() -> None:
    async def test(rig):
        async def refuse(xid: int) -> None:
            others = len(rig.server.connections)
            neighbour = await rig.peer()
            neighbour.send(bad_call(xid))
            await neighbour.over()
            await rig.until(lambda: len(rig.server.connections) == others)

        await refuse(XID - 1)
        honest = await rig.peer()
        assert (await honest.call(NULL_CALL)).procedure == MSG
        await refuse(XID)
        reply = await honest.call(NULL_CALL)
        assert reply.procedure == MSG, "who has a connection of its own was not at fault"
        assert accept_status(reply.payload) == 0
        # The neighbour is told of it when it calls again.
        again = await (await rig.peer()).call(bad_call())
        assert (again.procedure, again.error) == (ERROR, ERR_CHUNK)

    run(test, provider=SoftIwarp)
