"""Programs whose procedures are answered natively, and their calls that wait. Implemented in ``native_program.pyx``."""

from rpcrdma.declined import Declined
from rpcrdma.rpc.program import Transport
from rpcrdma.rpc.tally import Latencies, Tally

class NativeProgram:
    """The procedures of one version of one program that can be answered natively; derived from in native code.

    ``latencies`` has the times of its calls.

    ``answer`` writes the results of a procedure, or declines: then it has changed nothing. ``pause`` gives up what was
    held between calls (such as the caller's identity)."""

    latencies: Latencies
    declined: Declined
    waited: Declined
    """Likewise calls that had to wait, for what stands for the reason."""

class Waiting:
    """A call that waits; as text, which one it is."""

    since: float
    """On the clock of time.perf_counter, in seconds."""
    xid: int
    row: int
    """Its procedure's number, or that of the operation of a COMPOUND that waits."""
    tally: Tally | None
    """Where it will be counted, if that is known."""
    transport: Transport
    label: tuple[str, int, str]
    """Program, version, procedure."""
    number: tuple[int, int, int]
    why: str
    """For what."""
