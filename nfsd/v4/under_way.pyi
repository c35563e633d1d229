"""A COMPOUND that is under way natively. Implemented in ``under_way.pyx``."""

from rpcrdma.rpc.native_program import NativeProgram

class UnderWay(NativeProgram):
    """Where it stands; of use to native code only."""
