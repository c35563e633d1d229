# distutils: extra_compile_args = -O2
"""What an RDMA connection of the server does when messages have arrived (contract: ``receiving.pyi``).

Owns :class:`ReceivingConnection`, of which :class:`rpcrdma.server.rdma_connection.RdmaConnection` is made; imports the native
responder, the state of the other one, and the counts of calls. Native because each call of a client that makes one at a time is
a batch of its own.
"""

from collections import deque


cdef class ReceivingConnection:
    def __init__(self, CountingSeat seat not None, Pace pace not None, slowing):
        self.counted, self.pace, self.slowing = seat, pace, slowing
        self.late, self.held_back = deque(), deque()

    def called(self):
        raise NotImplementedError

    def grow(self):
        raise NotImplementedError

    def run(self):
        raise NotImplementedError

    def crashed(self):
        raise NotImplementedError

    def received(self, messages):
        if self.tap is not None:
            self.tap.received(messages)
        if self.late or self.stops():
            messages = self.put_off(messages)
        if messages:
            self.take(messages)

    cdef bint stops(self) except -1:
        """Whether the next call must wait. One that waits still does when the rate has just gone."""
        return (self.pace.limited or self.slowing.waits) and self.slowing.stops()

    def put_off(self, messages):
        calls, others = messages, ()
        if self.native is not None:
            calls, others = self.native.calls_and_others(messages)
        self.late.extend(calls)
        if self.late:
            self.slowing.wait()
        return others

    cpdef int take(self, messages) except -1:
        cdef ResponderState responder = self.responder
        if responder.credits.due():
            self.grow()
        try:
            if self.native is not None and not responder.holds_too_many():
                messages = self.native.take(messages)
                if self.native.late is not None:
                    self.late.extend(self.native.late)
                    self.slowing.wait()
            if messages:
                responder.received(messages)
        except Exception:
            self.crashed()
        if not self.counted.called and responder.received_messages:
            self.called()
        if self.held_back or not responder.at_rest():
            self.run()
        return 0

    def begin_held(self):
        if self.held_back or not self.counted.begin():
            return False
        self.held += 1
        return True

    def end_held(self):
        self.held -= 1
        self.counted.end()
