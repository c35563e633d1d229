"""What a native call waits for.

Owns :class:`Work`, :class:`Errand`, a coroutine, and :class:`Later`; workers' are the file service's. Imports :mod:`rpcrdma.place` and how
coroutines are run without tasks.
"""

from rpcrdma.place cimport Held

import asyncio

from rpcrdma.addresses import host_of
from rpcrdma.callers import CALLING_HOST
from rpcrdma.firewall import contain
from rpcrdma.rpc import eager


cdef class Work:
    cdef int start(self) except -1:
        """Begin. At the end, which comes when this has returned, call :meth:`over`."""
        raise NotImplementedError

    cdef int over(self) except -1:
        """It has been done, or has failed: its call is offered again."""
        cdef Held held = self.held
        self.held = None
        return 0 if held is None else held.again()

    def tell(self):
        """As :meth:`over`, for the event loop."""
        self.over()


cdef class Later(Work):
    cdef int start(self) except -1:
        asyncio.get_running_loop().call_soon(contain, None, self.tell)
        return 0


cdef class Errand(Work):
    def __init__(self, coroutine):
        self.coroutine = coroutine

    def __del__(self):
        if self.coroutine is not None:
            self.coroutine.close()  # its call was not kept; Python would warn that it was never awaited

    cdef bint begin(self, str peer_address) except -1:
        """Take the first steps for a call of this peer before it is known that it has to wait; whether that was all. If not,
        the call waits for this: it goes on by itself, whatever becomes of the call."""
        caller = CALLING_HOST.set(host_of(peer_address))
        self.begun = self.starting = True
        try:
            eager.start(self.coroutine, self.ended)
        finally:
            CALLING_HOST.reset(caller)
        self.starting = False
        self.coroutine = None
        return self.ended_already

    cdef int start(self) except -1:
        if self.begun:
            if self.ended_already:
                asyncio.get_running_loop().call_soon(contain, None, self.tell)
            return 0
        caller = None if self.host is None else CALLING_HOST.set(self.host)
        self.starting = True
        try:
            eager.start(self.coroutine, self.ended)
        finally:
            if caller is not None:
                CALLING_HOST.reset(caller)
        self.starting = False
        self.coroutine = None
        return 0

    def ended(self, result, error):
        """What the coroutine has come to."""
        self.result, self.error, self.ended_already = result, error, True
        if self.starting and self.begun:
            return
        if self.starting:
            asyncio.get_running_loop().call_soon(contain, None, self.tell)
        else:
            self.over()


cdef class Unbegun(Work):
    pass


cdef Work kept_by(object kept):
    """In the place of the work, for a call that waits for nothing but goes on from there."""
    cdef Work work = Work.__new__(Work)
    work.kept = kept
    return work
