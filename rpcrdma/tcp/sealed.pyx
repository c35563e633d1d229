"""How a record stream's octets leave under TLS: enciphered, by this thread or another.

Owns :class:`Sealed`, which an :class:`~rpcrdma.tcp.outgoing.Outgoing` has; imports that and what does the jobs. Octets
are enciphered where they are (a lease, a buffer, a pipe with a file's pages) into a lease of the connection's, LARGEST
octets at a time, and leave from there in few system calls. They count as sent, and what held them is released, when
they have been enciphered; records that the socket has not taken count as queued. If there is no lease to be had,
records go one by one by way of the heap: what is to be sent holds memory, and sending gives it back.

Where the kernel enciphers they leave from where they are, without a lease, and the kernel tells the peer what is no data.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from rpcrdma.crew cimport Crew, Finished
from rpcrdma.memory cimport Account, Lease
from rpcrdma.pipes cimport Pipe
from rpcrdma.tcp.outgoing cimport Cipher, Outgoing, Piece
from rpcrdma.tls.records cimport ALERT, HANDSHAKE, HEADER, MOST, TRAILER, Sealing
from rpcrdma.tls.enciphering cimport SOURCES, pass_on, run, source_t

import contextlib
import errno
import os

from rpcrdma.memory import OutOfMemory

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int fd, const void *at, size_t length, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL

cdef enum:
    LARGEST = 262144        # octets of records that are made before they are sent; they fit a processor's cache
    WHOLE = HEADER + MOST + TRAILER
    LONG = 16384            # octets that are enciphered without the interpreter's lock
    ASIDE = 131072          # octets for which a thread is called
    ASIDE_MOST = 1 << 20    # that it is given, while others may wait

cdef bytes KEY_UPDATE = b"\x18\0\0\1\0"     # RFC 8446 section 4.6.3: new keys from here on, and none are asked for


cdef class Job(Finished):
    def __cinit__(self):
        memset(&self.job, 0, sizeof(self.job))
        self.job.task.run = run

    cdef int task_done(self) except -1:
        if self.of is not None:
            self.of.busy = False
            self.of.wake()
        return 0


cdef Sealed sealed(Sealing sealing, Account account, Crew crew, object wake, object kernel):
    """How one connection's octets leave; ``wake`` is called when a thread has done with them. ``kernel``: what enciphers
    them; None: we do."""
    cdef Sealed made = Sealed.__new__(Sealed)
    made.own = Job.__new__(Job)
    made.own.of, made.wake = made, wake
    made.own.job.keys = &sealing.keys
    made.kernel = kernel
    if kernel is not None:
        made.own.job.task.run = pass_on
        sealing.fixed = not kernel.rekeys
    made.sealing, made.account, made.crew = sealing, account, crew
    return made


cdef class Sealed(Cipher):
    def __dealloc__(self):
        free(self.spare)

    cdef bint flush(self, Outgoing outgoing, int fd, size_t most) except -1:
        """As :meth:`Outgoing.flush`. While a thread sends, nothing has left and nothing is done."""
        cdef Job own = self.own
        if self.busy:
            return False
        own.job.fd = fd
        while True:
            self.settle(outgoing)
            if own.job.blocked:
                own.job.blocked = False
                return False
            if own.job.start == own.job.end and not self.prepare(outgoing, most):
                self.drop()
                return outgoing.first == outgoing.beyond
            if self.crew is not None and own.job.left >= ASIDE and self.crew.post(&own.job.task, own):
                self.busy = True
                return False
            most -= min(most, own.job.left)
            if own.job.left >= LONG:
                with nogil:
                    own.job.task.run(&own.job.task)
            else:
                own.job.task.run(&own.job.task)

    cdef bint prepare(self, Outgoing outgoing, size_t most) except -1:
        """Say what is next. False: there is nothing, or no more than has been."""
        cdef bytes update
        if outgoing.first == outgoing.beyond or most == 0:
            return False
        if self.kernel is not None and self.sealing.update_due and not self.update():
            return False
        if self.crew is not None and outgoing.queued >= ASIDE:
            most = ASIDE_MOST
        self.gather(outgoing, most)
        if self.kernel is not None:
            return True
        self.find_room(self.own.job.left)
        if self.sealing.update_due:
            update = self.sealing.record(HANDSHAKE, KEY_UPDATE)
            self.sealing.update()
            self.sealing.update_due = False
            memcpy(self.own.job.room, <char *>update, len(update))
            self.own.job.end = len(update)
        return True

    cdef bint update(self) except -1:
        """Have the kernel change keys. False: not before the socket takes more."""
        try:
            self.sealing.update_due = not self.kernel.update()
        except OSError:
            self.own.job.error = errno.EIO  # what the peer has been told may not be so
            raise
        return not self.sealing.update_due

    cdef int gather(self, Outgoing outgoing, size_t most) except -1:
        """Note where the next octets are."""
        cdef size_t index = outgoing.first, skip = outgoing.sent_of_first
        cdef source_t *source
        cdef Piece *piece
        self.own.job.count = self.own.job.index = self.own.job.offset = self.own.job.left = 0
        while index < outgoing.beyond and self.own.job.count < SOURCES and self.own.job.left < most:
            piece = &outgoing.pieces[index]
            source = &self.own.job.sources[self.own.job.count]
            source.pipe = -1
            if piece.pipe != NULL:
                source.pipe = (<Pipe>piece.pipe).drain
            elif piece.base != NULL:
                source.base = <uint8_t *>piece.base + skip
            else:
                memcpy(source.octets, piece.octets, 8)  # pieces move in memory
                source.base = source.octets + skip
            source.length = min(piece.length - skip, most - self.own.job.left)
            self.own.job.left += source.length
            self.own.job.count += source.length > 0
            index, skip = index + 1, 0
        return 0

    cdef int find_room(self, size_t octets) except -1:
        """Have room for records, for one at least."""
        cdef size_t wanted = min(octets + (2 + octets // MOST) * (HEADER + TRAILER + 5), <size_t>LARGEST)
        if self.lease is not None and self.lease.capacity < wanted:
            self.drop()
        if self.lease is None:
            try:
                self.lease = self.account.lease(wanted)
            except OutOfMemory:
                pass
        if self.lease is not None:
            self.own.job.room, self.own.job.capacity = <uint8_t *>self.lease.address, self.lease.capacity
            return 0
        if self.spare == NULL:
            self.spare = malloc(WHOLE)
        if self.spare == NULL:
            raise MemoryError
        self.own.job.room, self.own.job.capacity = <uint8_t *>self.spare, WHOLE
        return 0

    cdef int settle(self, Outgoing outgoing) except -1:
        """Take what has been enciphered off the queue. Raises OSError where it could not be sent."""
        cdef size_t done = self.own.job.enciphered, left = done, part, index = outgoing.first
        cdef size_t skip = outgoing.sent_of_first
        self.own.job.enciphered = 0
        self.waiting = self.own.job.end - self.own.job.start
        while left:
            part = min(left, outgoing.pieces[index].length - skip)
            if outgoing.pieces[index].pipe != NULL:
                (<Pipe>outgoing.pieces[index].pipe).level -= part
            left -= part
            index, skip = index + 1, 0
        outgoing.sent += done
        outgoing.queued -= done
        outgoing.consume(done)
        if self.own.job.error:
            raise OSError(self.own.job.error, os.strerror(self.own.job.error))
        return 0

    cdef int drop(self) except -1:
        """Give the room back. Nothing is in it."""
        lease, self.lease = self.lease, None
        self.own.job.start = self.own.job.end = 0
        self.waiting = 0
        free(self.spare)
        self.spare = NULL
        if lease is not None:
            lease.release()
        return 0

    cdef int alone(self) except -1:
        """Have no other thread send any more."""
        if self.busy:
            self.crew.withdraw(&self.own.job.task)
            self.busy = self.own.job.task.cancelled = False
        self.crew = None
        return 0

    cdef int part(self, int fd) except -1:
        """Tell the peer that this is the end, or why it is (section 6), if it takes that at once."""
        cdef bytes alert = bytes((2 if self.sealing.parting else 1, self.sealing.parting))
        if self.busy or self.own.job.start < self.own.job.end or self.own.job.error:
            return 0
        if self.kernel is not None:
            with contextlib.suppress(OSError):
                self.kernel.send(ALERT, alert)
            return 0
        alert = self.sealing.record(ALERT, alert)
        c_send(fd, <char *>alert, len(alert), MSG_DONTWAIT | MSG_NOSIGNAL)
        return 0

    cdef int close(self) except -1:
        """Let go of what is being sent. What holds it may be released then."""
        self.alone()
        self.own.of = self.wake = None  # they hold us
        self.own.job.error = 0
        self.own.job.enciphered = self.own.job.left = 0
        self.own.job.blocked = False
        return self.drop()
