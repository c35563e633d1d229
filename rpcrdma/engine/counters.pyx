# distutils: extra_compile_args = -O2
"""Numbers a responder keeps, named after the trace points of Linux's svcrdma (contract: ``counters.pyi``).

Owns :class:`Counters`; imports :mod:`rpcrdma.wire` only. Native because some change with each batch of messages.
"""

from rpcrdma.wire.header import Fault

NAMES = (
    "backward_calls",
    "backward_replies",
    "calls",
    "discards",
    "err_bad_xdr",
    "err_cant_reply",
    "err_chunk",
    "err_inval_option",
    "err_inval_proc",
    "err_vers",
    "inline_replies",
    "invalidations",
    "long_calls",
    "long_replies",
    "memory_waits",
    "native_calls",
    "no_replies",
    "options",
    "read_bytes",
    "read_failures",
    "reads",
    "receives",
    "replies",
    "send_failures",
    "starved_grants",
    "version_one",
    "version_two",
    "write_bytes",
    "writes",
)
cdef dict TWO = {
    Fault.PROCEDURE: "err_inval_proc",
    Fault.HEADER: "err_bad_xdr",
    Fault.NO_ROOM: "err_cant_reply",
    Fault.OPTION: "err_inval_option",
}


cdef class Counters:
    def items(self):
        return ((name, getattr(self, name)) for name in NAMES)

    def refused(self, long version, fault):
        name = "err_vers" if fault is Fault.VERSION else "err_chunk" if version == 1 else TWO[fault]
        setattr(self, name, getattr(self, name) + 1)

    def settled(self, long version):
        if version == 1:
            self.version_one += 1
        else:
            self.version_two += 1
