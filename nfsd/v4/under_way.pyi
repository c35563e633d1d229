"""A COMPOUND that is under way natively. Implemented in ``under_way.pyx``."""

from rpcrdma.rpc.direct import DirectProgram

class UnderWay(DirectProgram):
    """Where it stands; of use to native code only."""
