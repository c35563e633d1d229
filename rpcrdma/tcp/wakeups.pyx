# distutils: extra_compile_args = -O2
"""What a TCP connection of the server does when something has arrived (contract: ``wakeups.pyi``).

Owns :class:`WokenConnection`, of which :class:`rpcrdma.server.tcp_connection.TcpConnection` is made; imports the record stream.
Native because each call of a client that makes one at a time is a wake-up of its own: Python took a tenth of the CPU there.
"""

from collections import deque

from rpcrdma.tcp.stream import RecordError


cdef class WokenConnection(CountingConnection):
    def __init__(self, CountingSeat seat not None, long most_calls, RecordStream stream not None, time):
        CountingConnection.__init__(self, seat, most_calls)
        self.stream, self.time, self.waiting = stream, time, deque()
        self.last_call = time()

    def called(self):
        raise NotImplementedError

    def work(self):
        raise NotImplementedError

    def resume_soon(self):
        raise NotImplementedError

    def broken(self, error):
        raise NotImplementedError

    def fail(self, reason):
        raise NotImplementedError

    def readable(self):
        self.take(True)

    def receive(self, bint readable):
        self.take(readable)

    cdef int take(self, bint readable) except -1:
        cdef list records
        cdef bint settled
        cdef Py_ssize_t taken
        try:
            records = self.stream.receive(readable)
            settled = not records and self.settle()
        except RecordError as error:
            self.fail(str(error))
            return 0
        except OSError as error:
            self.broken(error)  # the socket's: what a call raises has been answered
            return 0
        taken = len(records) + self.stream.answered
        if taken:
            self.served += taken
            if not self.counted.called:
                self.called()
        if not settled:
            self.waiting.extend(records)
            self.work()
        return 0

    def is_settled(self):
        return self.settle()

    cdef bint settle(self) except -1:
        if not self.reading or self.writing or self.waiting or not self.stream.settle():
            return False
        self.last_call = self.time()
        if self.stream.unfinished and not self.resuming:
            self.resume_soon()
        return True
