"""The native decoder: walks the same nodes as the reference one, with the same answers (:mod:`rpcrdma.xdr.codec`).

Operation
    Objects are made without their constructors, each field stored at its slot's offset (:mod:`rpcrdma.xdr._op`).

Buffer ownership
    The decoder holds the exporter of ``data`` and gives slices of it, or of a chunk, for DDP-eligible items.

Garbage collection
    Objects whose declared fields can hold no containers are untracked: no cycle can go through them, and a message
    makes many.

    A decoder refers to memory only, never to what may refer to it, and the collector must not see it: it would clear a
    memoryview before the decoder that has it exported, and the interpreter crashes when that view goes.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLong
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from rpcrdma.octets cimport load32, load64, padded
from rpcrdma.xdr._op cimport (
    ARRAY, BOOL, BULK, CHAIN, ENUM, FIXED, INT32, INT64, NO_ARM, OPAQUE, OPTIONAL, SMALL, STRUCT, UINT32, UINT64, UNION,
    VOID, Op, arm_of, make, op_of, set_field,
)

from rpcrdma.xdr.errors import XdrError


cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *value)


@cython.no_gc
cdef class Decoder:
    """Reads one message; see :class:`rpcrdma.xdr.codec.Decoder`."""

    def __cinit__(self, data, chunks=(), offset=0, strict_padding=False):
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.held = True
        self.data = <const unsigned char *>self.view.buf
        self.length = self.view.len
        if not 0 <= offset <= self.length:
            raise XdrError(f"offset {offset} is outside of the message")
        self.at = offset
        self.chunks = list(chunks) if chunks else None
        self.next_chunk()
        self.strict_padding = strict_padding
        self.whole = None

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    cdef int next_chunk(self) except -1:
        """Note where the first chunk not taken yet belongs."""
        if self.chunks is None or self.chunk >= len(self.chunks):
            self.chunk_position = -1
        else:
            self.chunk_position = self.chunks[self.chunk][0]
        return 0

    @property
    def position(self):
        return self.at

    @property
    def remaining(self):
        return self.length - self.at

    @property
    def unreduced_position(self):
        return self.at + self.chunked

    @property
    def skipped_chunk(self):
        return 0 <= self.chunk_position < self.at + self.chunked

    cdef const unsigned char *take(self, Py_ssize_t length) except NULL:
        cdef const unsigned char *found = self.data + self.at
        if length > self.length - self.at:
            raise XdrError(f"{length} octets wanted, {self.length - self.at} remain")
        self.at += length
        return found

    cdef int64_t get_uint32(self) except -1:
        return load32(self.take(4))

    cdef int get_uint64(self, uint64_t *value) except -1:
        value[0] = load64(self.take(8))
        return 0

    cdef const unsigned char *get_padded(self, Py_ssize_t length) except NULL:
        cdef const unsigned char *found = self.take(padded(length))
        cdef Py_ssize_t index
        if self.strict_padding:
            for index in range(length, padded(length)):
                if found[index]:
                    raise XdrError("padding that is not zero")
        return found

    cdef Py_ssize_t get_length(self, Py_ssize_t limit) except -1:
        cdef Py_ssize_t length = self.get_uint32()
        if length > limit:
            raise XdrError(f"{length} octets, at most {limit} are allowed")
        return length

    cdef bytes get_opaque(self, Py_ssize_t limit):
        cdef Py_ssize_t length = self.get_length(limit)
        return PyBytes_FromStringAndSize(<const char *>self.get_padded(length), length)

    cdef object get_bulk(self, Py_ssize_t limit):
        cdef Py_ssize_t length = self.get_length(limit)
        cdef Py_ssize_t start = self.at
        if self.chunk_position < 0 or self.chunk_position != self.at + self.chunked:
            self.get_padded(length)
            if self.whole is None:
                self.whole = memoryview(<object>self.view.obj).toreadonly()
            return self.whole[start : start + length]
        view = self.chunks[self.chunk][1]
        if len(view) != length and len(view) != padded(length):
            raise XdrError(f"a chunk of {len(view)} octets for an item of {length}")
        self.chunk += 1
        self.next_chunk()
        self.chunked += padded(length)
        return view[:length]

    cdef object get_enum(self, Op op):
        cdef uint32_t number = <uint32_t>self.get_uint32()
        cdef object member
        if number < SMALL:
            member = op.small_members[number]
        else:
            member = op.members.get(<int32_t>number)
        if member is not None:
            return member
        if op.strict:
            raise XdrError(f"{number} is no {op.name}")
        return number

    cdef bint get_bool(self) except -1:
        cdef int64_t value = self.get_uint32()
        if value > 1:
            raise XdrError(f"{value} is no boolean")
        return value == 1

    cdef list get_list(self, Op op):
        cdef list values = []
        cdef int64_t count = op.size
        cdef Op element = op.element
        if op.kind == CHAIN:
            while self.get_bool():
                if <int64_t>len(values) == count:
                    raise XdrError(f"more than {count} elements")
                values.append(self.get(element))
            return values
        if op.kind == ARRAY:
            count = self.get_uint32()
            if count > op.size:
                raise XdrError(f"{count} elements, at most {op.size} are allowed")
        if count * <int64_t>element.min_size > self.length - self.at:
            raise XdrError(f"{count} elements do not fit into {self.length - self.at} octets")
        while count:
            values.append(self.get(element))
            count -= 1
        return values

    cdef object get_struct(self, Op op):
        cdef object made = make(op)
        cdef Py_ssize_t index
        for index in range(op.count):
            set_field(op, made, index, self.get(<Op>op.parts[index]))
        if op.leaf and op.direct:
            PyObject_GC_UnTrack(<void *>made)
        return made

    cdef object get_union(self, Op op):
        cdef object selected = self.get(<Op>op.parts[0])
        cdef int arm = arm_of(op, PyLong_AsLongLong(selected))
        cdef object made, value
        cdef Py_ssize_t index
        if arm == NO_ARM:
            raise XdrError(f"{op.name} has no arm for {selected!r}")
        value = self.get(<Op>op.parts[arm]) if arm else None
        made = make(op)
        set_field(op, made, 0, selected)
        for index in range(1, op.count):
            set_field(op, made, index, value if index == arm else None)
        if op.leaf and op.direct:
            PyObject_GC_UnTrack(<void *>made)
        return made

    cdef object get(self, Op op):
        cdef int kind = op.kind
        cdef uint64_t wide
        if kind == STRUCT:
            return self.get_struct(op)
        if kind == UINT32:
            return self.get_uint32()
        if kind == UINT64:
            self.get_uint64(&wide)
            return wide
        if kind == FIXED:
            return PyBytes_FromStringAndSize(<const char *>self.get_padded(op.size), op.size)
        if kind == OPAQUE:
            return self.get_opaque(op.size)
        if kind == ENUM:
            return self.get_enum(op)
        if kind == UNION:
            return self.get_union(op)
        if kind == BOOL:
            return self.get_bool()
        if kind == BULK:
            return self.get_bulk(op.size)
        if kind == INT32:
            return <int32_t>load32(self.take(4))
        if kind == INT64:
            return <int64_t>load64(self.take(8))
        if kind == OPTIONAL:
            return self.get(op.element) if self.get_bool() else None
        if kind == VOID:
            return None
        return self.get_list(op)

    def uint32(self):
        """Decode an unsigned integer."""
        return self.get_uint32()

    def int32(self):
        """Decode a signed integer."""
        return <int32_t>load32(self.take(4))

    def uint64(self):
        """Decode an unsigned hyper integer."""
        return load64(self.take(8))

    def int64(self):
        """Decode a signed hyper integer."""
        return <int64_t>load64(self.take(8))

    def boolean(self):
        """Decode a truth value, 0 or 1."""
        return self.get_bool()

    def fixed(self, Py_ssize_t size):
        """Decode fixed-length opaque data."""
        if size < 0:
            raise XdrError(f"{size} octets")
        return PyBytes_FromStringAndSize(<const char *>self.get_padded(size), size)

    def opaque(self, Py_ssize_t limit):
        """Decode variable-length opaque data of at most ``limit`` octets."""
        return self.get_opaque(limit)

    def bulk(self, Py_ssize_t limit):
        """Decode a DDP-eligible opaque, from the chunk at this position if there is one, without a copy."""
        return self.get_bulk(limit)

    def decode(self, kind):
        """Decode a value of the declared type ``kind`` (None: void)."""
        return self.get(op_of(kind))

    def finish(self, strict=False):
        """Raise XdrError if a chunk matched no DDP-eligible item or, if ``strict``, octets remain."""
        if self.chunk_position >= 0:
            raise XdrError(f"a chunk at position {self.chunk_position} matches no item")
        if strict and self.at < self.length:
            raise XdrError(f"{self.length - self.at} octets too many")


@cython.no_gc
cdef class ResultDecoder(Decoder):
    """Reads results; see :class:`rpcrdma.xdr.codec.ResultDecoder`."""

    cdef object get_bulk(self, Py_ssize_t limit):
        cdef Py_ssize_t length = self.get_length(limit)
        cdef Py_ssize_t start = self.at
        cdef Py_ssize_t there = 0
        cdef object memory = None
        if self.places is not None and self.place < len(self.places):
            memory, there = self.places[self.place]
            self.place += 1
        if there:
            if there != length and there != padded(length):
                raise XdrError(f"a chunk of {there} octets for an item of {length}")
            self.chunked += padded(length)
            return memory[:length]
        self.get_padded(length)
        if self.whole is None:
            self.whole = memoryview(<object>self.view.obj).toreadonly()
        view = self.whole[start : start + length]
        if memory is None or length > len(memory):
            return view
        memory[:length] = view
        return memory[:length]

    def finish(self, strict=False):
        """Raise XdrError if a chunk matched no DDP-eligible item or, if ``strict``, octets remain."""
        for _, there in (self.places or ())[self.place :]:
            if there:
                raise XdrError(f"a chunk of {there} octets matches no item")
        Decoder.finish(self, strict)
