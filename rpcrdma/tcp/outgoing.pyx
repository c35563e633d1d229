"""What a record stream has to send: a queue of pieces, and the system calls that empty it.

Owns :class:`Outgoing`, and what a :class:`Cipher` is; imports :mod:`rpcrdma.memory` and :mod:`rpcrdma.pipes`.

A piece is a few octets of its own (a record mark, padding), a part of a Python buffer, octets behind a lease, or octets
in a pipe. Every flush gathers as many pieces as there are into one sendmsg(), up to the next pipe, which takes a
splice() of its own; MSG_MORE says that it follows, so that a head does not leave as a segment of its own. What a piece
holds is released when its last octet has left, or when the queue is closed.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset

from rpcrdma.memory cimport Lease
from rpcrdma.pipes cimport Pipe

import os


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len


cdef extern from "<sys/socket.h>" nogil:
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen

    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE


cdef enum:
    VECTORS = 512
    LAST_FRAGMENT = 0x80000000


cdef class Cipher:
    cdef bint flush(self, Outgoing outgoing, int fd, size_t most) except -1:
        raise NotImplementedError

    cdef int alone(self) except -1:
        raise NotImplementedError

    cdef int part(self, int fd) except -1:
        raise NotImplementedError

    cdef int close(self) except -1:
        raise NotImplementedError


cdef class Outgoing:
    def __dealloc__(self):
        cdef size_t i
        for i in range(self.first, self.beyond):
            if self.pieces[i].buffered:
                PyBuffer_Release(&self.pieces[i].buffer)
            Py_XDECREF(self.pieces[i].finished)
        free(self.pieces)

    # -- queueing ------------------------------------------------------------------------------------------------

    cdef int add_reply(self, reply) except -1:
        """A reply as one record: mark, head, payloads with their padding. One that cannot be queued is released."""
        cdef size_t before = self.beyond - self.first, queued = self.queued  # pieces may move meanwhile
        cdef size_t octets = len(reply)
        cdef size_t done = 0, offset, size
        cdef size_t length
        cdef Piece *piece
        try:
            if octets >= LAST_FRAGMENT:
                raise ValueError(f"a reply of {octets} octets does not fit a fragment")
            self.add_octets(<unsigned int>(LAST_FRAGMENT | octets), 4)
            head = reply.head
            for offset, payload in reply.payloads:
                if offset > done:
                    self.add_buffer(head, done, offset - done)
                    done = offset
                size = len(payload.view)
                if size:
                    self.add_buffer(payload.view, 0, size)
                if size & 3:
                    self.add_octets(0, 4 - (size & 3))
            length = len(head)
            if length > done:
                self.add_buffer(head, done, length - done)
        except BaseException:
            while self.beyond - self.first > before:
                self.beyond -= 1
                forget(&self.pieces[self.beyond])
            self.queued = queued
            reply.release()
            raise
        piece = &self.pieces[self.beyond - 1]
        Py_INCREF(reply)
        piece.finished = <PyObject *>reply
        return 0

    cdef Piece *add(self) except NULL:
        cdef void *larger
        cdef Piece *piece
        if self.beyond == self.capacity:
            if self.first > self.capacity // 2:
                memmove(self.pieces, self.pieces + self.first, (self.beyond - self.first) * sizeof(Piece))
                self.beyond -= self.first
                self.first = 0
            else:
                larger = realloc(self.pieces, (2 * self.capacity + 64) * sizeof(Piece))
                if larger == NULL:
                    raise MemoryError
                self.pieces = <Piece *>larger
                self.capacity = 2 * self.capacity + 64
        piece = &self.pieces[self.beyond]
        piece.base = NULL
        piece.buffered = False
        piece.pipe = NULL
        piece.finished = NULL
        self.beyond += 1
        return piece

    cdef int add_octets(self, unsigned int value, size_t length) except -1:
        """The first ``length`` octets of a big-endian integer. ``base`` stays NULL: pieces move in memory."""
        cdef Piece *piece = self.add()
        piece.octets[0] = <char>(value >> 24)
        piece.octets[1] = <char>(value >> 16)
        piece.octets[2] = <char>(value >> 8)
        piece.octets[3] = <char>value
        piece.length = length
        self.queued += length
        return 0

    cdef int add_buffer(self, source, size_t offset, size_t length) except -1:
        cdef Piece *piece = self.add()
        piece.length = 0
        PyObject_GetBuffer(source, &piece.buffer, PyBUF_SIMPLE)
        piece.buffered = True
        if offset + length > <size_t>piece.buffer.len:
            raise ValueError("a payload's offset lies outside of the reply's head")
        piece.base = <char *>piece.buffer.buf + offset
        piece.length = length
        self.queued += length
        return 0

    cdef int add_lease(self, uint8_t *base, size_t length, Lease lease) except -1:
        """Octets of a lease: the piece holds it until they have left. What follows on the last piece becomes part of
        it."""
        cdef Piece *piece
        if length == 0:
            return 0
        self.queued += length
        if self.first < self.beyond:
            piece = &self.pieces[self.beyond - 1]
            if piece.finished == <PyObject *>lease and piece.base + piece.length == <char *>base:
                piece.length += length
                return 0
        piece = self.add()
        piece.base = <char *>base
        piece.length = length
        lease.retain()
        Py_INCREF(lease)
        piece.finished = <PyObject *>lease
        return 0

    cdef int add_pipe(self, Pipe pipe, size_t length) except -1:
        """All that is in a pipe, ``length`` octets and not none; the pipe is released when they have left."""
        cdef Piece *piece = self.add()
        piece.length = length
        Py_INCREF(pipe)
        piece.pipe = piece.finished = <PyObject *>pipe
        self.queued += length
        return 0

    # -- sending -------------------------------------------------------------------------------------------------

    cdef bint flush(self, int fd, size_t most) except -1:
        """Send as much as the socket takes, ``most`` octets if it takes more. Returns whether all has left."""
        cdef size_t asked
        cdef ssize_t sent
        if self.cipher is not None:
            return self.cipher.flush(self, fd, most)
        while self.first < self.beyond:
            if most == 0:
                return False
            if self.pieces[self.first].pipe != NULL:
                asked = min(self.pieces[self.first].length - self.sent_of_first, most)
                sent = (<Pipe>self.pieces[self.first].pipe).send(fd, asked, self.first + 1 < self.beyond and asked < most)
            else:
                sent = self.gather(fd, most, &asked)
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    return False
                raise OSError(errno, os.strerror(errno))
            self.sent += sent
            self.queued -= sent
            most -= sent
            self.consume(<size_t>sent)
            if <size_t>sent < asked:
                return False
        return True

    cdef ssize_t gather(self, int fd, size_t most, size_t *asked) noexcept:
        """One sendmsg() of all pieces up to the next pipe, or of ``most`` octets."""
        cdef iovec vectors[VECTORS]
        cdef msghdr message
        cdef size_t count = 0, index = self.first, skip = self.sent_of_first
        cdef int flags = MSG_DONTWAIT | MSG_NOSIGNAL
        cdef Piece *piece
        asked[0] = 0
        while index < self.beyond and count < VECTORS and asked[0] < most:
            piece = &self.pieces[index]
            if piece.pipe != NULL:
                flags |= MSG_MORE  # there is room for some of it
                break
            vectors[count].iov_base = (piece.base if piece.base != NULL else piece.octets) + skip
            vectors[count].iov_len = min(piece.length - skip, most - asked[0])
            asked[0] += vectors[count].iov_len
            skip = 0
            count += 1
            index += 1
        memset(&message, 0, sizeof(message))
        message.msg_iov = vectors
        message.msg_iovlen = count
        return sendmsg(fd, &message, flags)

    cdef int consume(self, size_t sent) except -1:
        """Take what has left off the queue, and release what has left whole."""
        cdef Piece *piece
        cdef PyObject *finished
        cdef list done = []
        sent += self.sent_of_first
        while self.first < self.beyond and sent >= self.pieces[self.first].length:
            piece = &self.pieces[self.first]
            sent -= piece.length
            self.first += 1
            forget(piece)
            finished = piece.finished
            if finished != NULL:
                piece.finished = NULL
                done.append(<object>finished)
                Py_XDECREF(finished)
        self.sent_of_first = sent
        if self.first == self.beyond:
            self.first = self.beyond = 0
        for held in done:
            held.release()  # may run Python code: the queue is in order again
        return 0

    cdef int close(self) except -1:
        """Release everything."""
        if self.cipher is not None:
            self.cipher.close()
        self.sent_of_first = 0
        self.queued = 0
        while self.first < self.beyond:
            self.consume(self.pieces[self.first].length)
        return 0


cdef int forget(Piece *piece) except -1:
    """Give up the buffer that a piece refers to; what is finished with it is the caller's to release."""
    if piece.buffered:
        piece.buffered = False
        PyBuffer_Release(&piece.buffer)
    return 0
