"""A dispatcher that does to calls what it is told to, then executes them like any other.

Owns :class:`FaultyDispatcher`; imports the dispatcher, which knows nothing of it. It stands where a server was started
to misbehave. Elsewhere there is the plain one, and nothing is asked of any call.

A connection that something may be done to has none of its calls answered natively: all come to :meth:`dispatch`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rpcrdma.engine.spoiling import Spoilt
from rpcrdma.faults.plan import LONGEST_OVERTAKING, Message, Plan, Planner
from rpcrdma.firewall import contain
from rpcrdma.holds import Hold
from rpcrdma.log_limits import limited_logger
from rpcrdma.rpc.arrived import NO_REPLY, Done
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.native import NativeCalls
from rpcrdma.rpc.program import RpcReply, Transport
from rpcrdma.rpc.replay import Passed

_log = limited_logger(__name__)


class FaultyDispatcher(Dispatcher):
    """One that misbehaves as ``planner`` says."""

    def __init__(self, planner: Planner, *arguments: Any, **more: Any) -> None:
        """The rest is the dispatcher's."""
        super().__init__(*arguments, **more)
        self._planner = planner
        self._overtaken: dict[Transport, list[_Overtaken]] = {}
        """Replies that are waiting for others, by connection."""

    def native_calls(self, transport: Transport) -> NativeCalls | None:
        """What answers the common calls of a connection natively, as long as nothing may be done to them."""
        calls = super().native_calls(transport)
        if calls is not None:
            calls.intercepted = partial(self._planner.concerns, transport)
        return calls

    def dispatch(
        self,
        transport: Transport,
        data: memoryview,
        chunks: Sequence[tuple[int, memoryview]],
        holds: list[Hold],
        done: Done,
        reply_room: int = 0,
    ) -> None:
        """Execute the call, or what there is in its place, and call ``done`` exactly once. Raises nothing."""
        plan = None
        # What has been begun natively goes on as it is: it has had part of its effect.
        if self._planner.concerns(transport) and not any(type(hold) is Passed for hold in holds):
            try:
                plan = self._planner.plan(transport, (data, chunks))
            except Exception as error:
                _log.error("no fault is injected into this call", exc_info=error)
            done = partial(self._pass, transport, done)
        if plan is None:
            super().dispatch(transport, data, chunks, holds, done, reply_room)
            return
        act = partial(self._act, plan, transport, (data, chunks), holds, done, reply_room)
        if plan.delay:
            _later(plan.delay, act)
        else:
            act()

    def _act(
        self, plan: Plan, transport: Transport, message: Message, holds: list[Hold], done: Done, reply_room: int
    ) -> None:
        """Execute a call, unless the plan says otherwise."""
        if plan.drop == "call" or plan.disconnect == "before" or plan.answer is not None:
            for hold in holds:
                hold.release()
            if plan.disconnect == "before":
                done(None)
            elif plan.drop == "call":
                done(NO_REPLY)
            else:
                self._answered(plan, transport, done, plan.answer)
            return
        data, chunks = message if plan.message is None else plan.message
        answered = partial(self._answered, plan, transport, done)
        super().dispatch(transport, data, chunks, holds, answered, reply_room)

    def _answered(self, plan: Plan, transport: Transport, done: Done, reply: RpcReply | None) -> None:
        """A call is over."""
        if reply is None or reply is NO_REPLY:
            done(reply)
            return
        if plan.drop or plan.disconnect:
            reply.release()
            done(NO_REPLY if plan.drop else None)
            return
        if plan.amend is not None:
            reply = plan.amend(reply)
        if plan.spoiling is not None:
            reply = Spoilt(reply, plan.spoiling)  # type: ignore[assignment]  # of the connections that it is for
        send = partial(done, reply)
        if plan.overtaken_by:
            send = partial(self._wait_for_others, transport, plan.overtaken_by, send)
        if plan.delay_reply:
            _later(plan.delay_reply, send)
        else:
            send()

    # Replies that are overtaken

    def _wait_for_others(self, transport: Transport, others: int, send: Callable[[], None]) -> None:
        if transport not in self._overtaken:
            self._overtaken[transport] = []
            transport.on_close(lambda: self._give_up(transport))
        waiting = _Overtaken(others, send)
        self._overtaken.get(transport, []).append(waiting)
        _later(LONGEST_OVERTAKING, partial(self._leave, transport, waiting))

    def _leave(self, transport: Transport, waiting: _Overtaken) -> None:
        """Its time has come."""
        line = self._overtaken.get(transport, [])
        if waiting in line:
            line.remove(waiting)
        waiting.leave()

    def _give_up(self, transport: Transport) -> None:
        """The connection has gone."""
        for waiting in self._overtaken.pop(transport, []):
            waiting.leave()

    def _pass(self, transport: Transport, done: Done, reply: RpcReply | None) -> None:
        """A reply leaves; those that it was to overtake may be next."""
        done(reply)
        line = self._overtaken.get(transport)
        if not line or reply is None or reply is NO_REPLY:
            return
        for waiting in line:
            waiting.others -= 1
        for waiting in [one for one in line if one.others <= 0]:
            self._leave(transport, waiting)


class _Overtaken:
    """A reply that waits for so many others."""

    def __init__(self, others: int, send: Callable[[], None]) -> None:
        self.others = others
        self._send: Callable[[], None] | None = send

    def leave(self) -> None:
        """Send it, if that has not been done."""
        send, self._send = self._send, None
        if send is not None:
            send()


def _later(seconds: float, act: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, contain, None, act)
