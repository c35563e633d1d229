"""What is long and done with a security context's keys, by threads, for native calls that wait for it.

Owns :class:`Ciphering`, which a call waits for, and :class:`Turns`; imports :mod:`rpcrdma.gss` and the threads. A
context's keys are for one thread at a time, so each such work has a sealer of its own, which the context lends. The call
that waits keeps all that is worked on; it is carried through though its connection goes.

Hosts take turns: one has no more with the threads at a time than there are of these, so another's next waits for that much
of each.
"""

from collections import deque

from libc.stdint cimport uint8_t
from libc.string cimport memset

from rpcrdma.crew cimport Crew, Finished, task_t
from rpcrdma.gss.mechanism cimport decrypt, encrypt, make_mic, verify_mic

import asyncio

from rpcrdma.firewall import contain


cdef void do_cipher(task_t *task) noexcept nogil:
    cdef cipher_t *cipher = <cipher_t *>task
    cipher.start, cipher.length = 0, -1
    if cipher.kind == SIGN:
        cipher.length = make_mic(cipher.handle, cipher.parts, cipher.count)
    elif cipher.kind == ENCRYPT:
        if encrypt(cipher.handle, cipher.parts, cipher.count):
            cipher.length = 0
    elif cipher.kind == VERIFY:
        if verify_mic(cipher.handle, cipher.octets, cipher.size, cipher.mic, cipher.mic_size):
            cipher.length = cipher.size
    else:
        cipher.length = decrypt(cipher.handle, cipher.octets, cipher.size, &cipher.start)


cdef class Job(Finished):
    def __cinit__(self):
        memset(&self.cipher, 0, sizeof(self.cipher))
        self.cipher.task.run = do_cipher

    cdef int task_done(self) except -1:
        cdef Ciphering of = self.of
        self.of = None
        contain(None, of.tell_done)
        return 0


cdef class Host:
    """What one host has."""

    cdef int posted
    cdef object waiting


cdef class Turns:
    def __init__(self, Crew crew, int at_once):
        self.crew, self.at_once, self.hosts = crew, at_once, {}

    cdef int begin(self, Ciphering work) except -1:
        cdef Host host = self.hosts.get(work.host)
        if host is None:
            host = self.hosts[work.host] = Host()
            host.waiting = deque()
        if host.posted >= self.at_once:
            host.waiting.append(work)
            return 0
        host.posted += 1
        return work.post()

    cdef int ended(self, str name) except -1:
        cdef Host host = self.hosts[name]
        if host.waiting:
            return (<Ciphering>host.waiting.popleft()).post()
        host.posted -= 1
        if not host.posted:
            del self.hosts[name]
        return 0


cdef class Ciphering(Work):
    def __cinit__(self):
        self.own = Job()

    cdef int start(self) except -1:
        self.sealer = self.context.lend()
        self.own.cipher.handle = self.sealer.handle
        return self.turns.begin(self)

    cdef int post(self) except -1:
        """It is this one's turn."""
        cdef Crew crew = self.turns.crew
        loop = asyncio.get_running_loop()
        self.own.of = self
        if crew is not None:
            crew.attach(loop)
            if crew.post(&self.own.cipher.task, self.own):
                return 0
        with nogil:
            do_cipher(&self.own.cipher.task)
        self.own.of = None
        loop.call_soon(contain, None, self.tell_done)
        return 0

    def tell_done(self):
        self.done()

    cdef int abandon(self) except -1:
        """It could not be begun."""
        return 0

    cdef int done(self) except -1:
        self.context.take_back(self.sealer)
        self.sealer = None
        try:
            self.turns.ended(self.host)
        finally:
            self.over()
        return 0


cdef class Sealing(Ciphering):
    cdef int abandon(self) except -1:
        payload, self.payload = self.payload, None
        payload.release()
        return 0
