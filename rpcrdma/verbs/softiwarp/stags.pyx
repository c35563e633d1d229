"""STags: the memory an endpoint has exposed to its peer.

Owns registration, lookup and invalidation (RFC 5040 section 8.1.1: STags belong to one stream, have bounds and rights,
are hard to predict, and are refused once invalidated). The table belongs to one endpoint, so another stream's STag is
simply unknown. Imports nothing of the project.

A handle is index << 8 | key in the manner of the verbs, both parts random; the tagged offset of the first octet is
random too, so that no address of this process reaches the peer.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t, uint64_t


cdef class Registration:
    """One registered buffer. Holds the buffer from registration to invalidation, and through uses in progress."""

    def __dealloc__(self):
        self.drop()

    cdef void drop(self):
        self.valid = False
        if self.held:
            self.held = False
            PyBuffer_Release(&self.buffer)

    cdef char *locate(self, uint64_t offset, uint64_t length, bint write, int *problem) noexcept:
        """The address of (offset, length), or NULL with ``problem`` 0x00 STag, 0x01 bounds, 0x02 rights, 0x04 wrap."""
        if not self.valid:
            problem[0] = 0x00
            return NULL
        if not (self.remote_write if write else self.remote_read):
            problem[0] = 0x02
            return NULL
        if offset + length < offset:
            problem[0] = 0x04
            return NULL
        if offset < self.base or offset + length > self.base + <uint64_t>self.buffer.len:
            problem[0] = 0x01
            return NULL
        return <char *>self.buffer.buf + (offset - self.base)


cdef class StagTable:
    """The memory one endpoint has exposed to its peer."""

    def __init__(self, random=os.urandom, size_t limit=65536):
        self.by_handle = {}
        self.random = random
        self.limit = limit

    def __len__(self):
        return len(self.by_handle)

    cdef Registration find(self, uint32_t handle):
        return <Registration>self.by_handle.get(handle)

    cdef Registration remove(self, uint32_t handle):
        """Withdraw a registration; None when there is none."""
        cdef Registration registration = self.by_handle.pop(handle, None)
        if registration is not None:
            # The buffer itself stays held while a Read Response or an inbound Write still uses the registration.
            registration.valid = False
        return registration

    def register(self, view, bint remote_read, bint remote_write):
        """Expose ``view``. Raises BufferError when it is not contiguous or, for remote_write, not writable."""
        cdef Registration registration
        cdef uint32_t handle
        if len(self.by_handle) >= self.limit:
            raise BufferError(f"more than {self.limit} registrations on one connection")
        registration = Registration.__new__(Registration)
        PyObject_GetBuffer(view, &registration.buffer, PyBUF_WRITABLE if remote_write else PyBUF_SIMPLE)
        registration.held = True
        registration.remote_read = remote_read
        registration.remote_write = remote_write
        while True:
            drawn = self.random(9)
            handle = int.from_bytes(drawn[:4], "big")
            # 0 stands for "no STag" in Send headers.
            if handle and handle not in self.by_handle:
                break
        registration.handle = handle
        registration.base = int.from_bytes(drawn[4:], "big") << 12
        registration.valid = True
        self.by_handle[handle] = registration
        return registration

    def invalidate(self, uint32_t handle):
        """Withdraw a registration. Raises KeyError when there is none."""
        if self.remove(handle) is None:
            raise KeyError(handle)

    def clear(self):
        """Withdraw everything."""
        cdef Registration registration
        for registration in self.by_handle.values():
            registration.valid = False
        self.by_handle.clear()
