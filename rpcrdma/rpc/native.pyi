"""Calls answered natively, in the stack in which they arrived. Implemented in ``native.pyx``."""

from collections.abc import Awaitable, Callable

from rpcrdma.declined import Declined
from rpcrdma.place import Answerer
from rpcrdma.rpc.dispatch import Dispatcher, Row
from rpcrdma.rpc.messages import auth_stat
from rpcrdma.rpc.native_program import NativeProgram
from rpcrdma.rpc.program import RpcCredential, Transport
from rpcrdma.rpc.replay import ReplayCache
from rpcrdma.rpc.signed import Known

class Gate:
    """Whom the server is for; derived from by who knows. Both paths ask it before a call of a peer is executed, the
    native one once per connection, generation and ``lasts``."""

    generation: int
    """To be raised whenever an answer of :meth:`admits` may have changed."""
    lasts: float
    """Seconds after which the native path asks again in any case; without bound unless set."""

    def learn(self, transport: Transport) -> Awaitable[None] | None:
        """What to wait for before it can be said who the peer is (such as the name service's answer); None: nothing."""

    def admits(self, transport: Transport) -> bool:
        """Whether calls of the peer are executed; without waiting, by what is known now."""

    def turned_away(self, transport: Transport) -> None:
        """A call of the peer has been refused (to tell the log)."""

class NativeCalls(Answerer):
    """The native calls of one connection."""

    intercepted: Callable[[], bool] | None
    """Says whether all calls are to be declined; None: nobody asks for that. Asked when the gate is."""

    def __init__(
        self,
        transport: Transport,
        replay: ReplayCache,
        read_credential: Callable[[int, memoryview], RpcCredential | auth_stat],
        versions: list[tuple[int, int, NativeProgram, list[Row | None]]],
        gate: Gate | None = None,
        unknown: Declined | None = None,
        flights: Dispatcher | None = None,
        secured: Known | None = None,
    ) -> None:
        """``versions``: (program, version, native program, rows by procedure). ``unknown``: where calls are counted that
        are declined before their program is known. ``flights`` has the calls that wait in its ``held``, and is told by
        ``ended`` when there are none any more. ``secured`` knows the contexts of RPCSEC_GSS."""
