"""The native encoder: walks the same nodes as the reference one, with the same answers (:mod:`rpcrdma.xdr.codec`).

Fields are read at their slots' offsets (:mod:`rpcrdma.xdr._op`). The encoder owns its buffer, lends views of it
(``getbuffer``), and refuses to change it while a view is out.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLong, PyLong_AsUnsignedLongLong
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from rpcrdma.octets cimport padded, store32, store64
from rpcrdma.xdr._op cimport (
    ARRAY, BOOL, BULK, CHAIN, ENUM, FIXED, FIXED_ARRAY, INT32, INT64, NO_ARM, OPAQUE, OPTIONAL, STRUCT, UINT32, UINT64,
    UNION, VOID, Op, arm_of, get_field, op_of,
)

from rpcrdma.xdr import codec, schema
from rpcrdma.xdr.errors import XdrError, XdrOverflow
from rpcrdma.xdr.payload import Payload


cdef class Encoder:
    """Builds one message; see :class:`rpcrdma.xdr.codec.Encoder`."""

    def __cinit__(self, Py_ssize_t limit=codec.DEFAULT_LIMIT):
        self.limit = limit
        self.payloads = []
        self.capacity = 512
        self.buffer = <char *>malloc(self.capacity)
        if self.buffer == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.buffer)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.buffer, self.used, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    @property
    def position(self):
        return self.used

    @property
    def size(self):
        return self.used + self.chunked

    cdef int room(self, Py_ssize_t length) except -1:
        if self.used + self.chunked + length > self.limit:
            raise XdrOverflow(f"more than {self.limit} octets")
        return 0

    cdef char *reserve(self, Py_ssize_t length) except NULL:
        """Room for ``length`` octets more, counted as used."""
        cdef Py_ssize_t wanted = self.used + length
        cdef void *larger
        cdef char *at
        if wanted + self.chunked > self.limit:
            raise XdrOverflow(f"more than {self.limit} octets")
        if self.exports:
            raise BufferError("a view of the buffer is held")
        if wanted > self.capacity:
            larger = realloc(self.buffer, wanted * 2)
            if larger == NULL:
                raise MemoryError
            self.buffer = <char *>larger
            self.capacity = wanted * 2
        at = self.buffer + self.used
        self.used = wanted
        return at

    cdef int put_uint32(self, uint32_t value) except -1:
        store32(<uint8_t *>self.reserve(4), value)
        return 0

    cdef int put_uint64(self, uint64_t value) except -1:
        store64(<uint8_t *>self.reserve(8), value)
        return 0

    cdef int put_octets(self, const void *octets, Py_ssize_t length) except -1:
        cdef char *at
        if length == 0:
            return 0
        at = self.reserve(padded(length))
        memset(at + padded(length) - 4, 0, 4)
        memcpy(at, octets, length)
        return 0

    cdef int put_counted(self, const void *octets, Py_ssize_t length) except -1:
        self.room(4 + padded(length))
        self.put_uint32(<uint32_t>length)
        return self.put_octets(octets, length)

    cdef int put_fixed(self, object data, Py_ssize_t size) except -1:
        """Fixed-length opaque data, of ``size`` octets unless that is negative."""
        cdef Py_buffer view
        if type(data) is bytes:
            if size >= 0 and len(<bytes>data) != size:
                raise XdrError(f"{len(data)} octets, {size} are declared")
            return self.put_octets(PyBytes_AS_STRING(data), len(<bytes>data))
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise XdrError(f"{type(data).__name__} is no opaque data")
        if isinstance(data, memoryview) and not data.c_contiguous:
            return self.put_fixed(bytes(data), size)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if size >= 0 and view.len != size:
                raise XdrError(f"{view.len} octets, {size} are declared")
            return self.put_octets(view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef int put_opaque(self, object data, Py_ssize_t limit) except -1:
        """Variable-length opaque data of at most ``limit`` octets."""
        cdef Py_buffer view
        if type(data) is bytes:
            if len(<bytes>data) > limit:
                raise XdrError(f"{len(data)} octets, at most {limit} are allowed")
            return self.put_counted(PyBytes_AS_STRING(data), len(<bytes>data))
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise XdrError(f"{type(data).__name__} is no opaque data")
        if isinstance(data, memoryview) and not data.c_contiguous:
            return self.put_opaque(bytes(data), limit)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len > limit:
                raise XdrError(f"{view.len} octets, at most {limit} are allowed")
            return self.put_counted(view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef int put_bulk(self, object data, Py_ssize_t limit) except -1:
        """A DDP-eligible opaque: a Payload leaves only its length here."""
        cdef Py_ssize_t length
        if not isinstance(data, Payload):
            return self.put_opaque(data, limit)
        length = len(data)
        if length > limit:
            raise XdrError(f"{length} octets, at most {limit} are allowed")
        self.room(4 + padded(length))
        self.put_uint32(<uint32_t>length)
        self.payloads.append((self.used, data))
        self.chunked += padded(length)
        return 0

    cdef int put_integer(self, int kind, object value) except -1:
        cdef int64_t signed
        cdef uint64_t unsigned
        if not isinstance(value, int):
            raise XdrError(f"{value!r} is no {schema.KIND_NAMES[kind]}")
        try:
            if kind == UINT64:
                unsigned = PyLong_AsUnsignedLongLong(value)
                signed = 0
            else:
                signed = PyLong_AsLongLong(value)
                unsigned = <uint64_t>signed
        except OverflowError:
            raise XdrError(f"{value!r} is no {schema.KIND_NAMES[kind]}") from None
        if kind == UINT32:
            if not 0 <= signed <= 0xFFFFFFFF:
                raise XdrError(f"{value!r} is no uint32")
            return self.put_uint32(<uint32_t>signed)
        if kind == INT32:
            if not -0x80000000LL <= signed <= 0x7FFFFFFFLL:
                raise XdrError(f"{value!r} is no int32")
            return self.put_uint32(<uint32_t><int32_t>signed)
        return self.put_uint64(unsigned)

    cdef int put_enum(self, Op op, object value) except -1:
        cdef int64_t number
        if not isinstance(value, int) or (op.strict and type(value) is not op.cls and value not in op.members):
            raise XdrError(f"{value!r} is no {op.name}")
        try:
            number = PyLong_AsLongLong(value)
        except OverflowError:
            raise XdrError(f"{value!r} is no {op.name}") from None
        if not -0x80000000LL <= number <= 0xFFFFFFFFLL:
            raise XdrError(f"{value!r} is no {op.name}")
        return self.put_uint32(<uint32_t>(number & 0xFFFFFFFFLL))

    cdef int put_list(self, Op op, object value) except -1:
        cdef Py_ssize_t count
        if not isinstance(value, (list, tuple)):
            raise XdrError(f"{type(value).__name__} is no list")
        count = len(value)
        if count > op.size or (op.kind == FIXED_ARRAY and count != op.size):
            raise XdrError(f"{count} elements, {op.size} are allowed")
        if op.kind == ARRAY:
            self.put_uint32(<uint32_t>count)
        for item in value:
            if op.kind == CHAIN:
                self.put_uint32(1)
            self.put(op.element, item)
        if op.kind == CHAIN:
            self.put_uint32(0)
        return 0

    cdef int put_struct(self, Op op, object value) except -1:
        cdef Py_ssize_t index
        if type(value) is not op.cls:
            raise XdrError(f"{type(value).__name__} is no {op.name}")
        for index in range(op.count):
            self.put(<Op>op.parts[index], get_field(op, value, index))
        return 0

    cdef int put_union(self, Op op, object value) except -1:
        cdef object selected
        cdef int arm
        if type(value) is not op.cls:
            raise XdrError(f"{type(value).__name__} is no {op.name}")
        selected = get_field(op, value, 0)
        self.put(<Op>op.parts[0], selected)
        arm = arm_of(op, PyLong_AsLongLong(selected) if (<Op>op.parts[0]).kind != BOOL else bool(selected))
        if arm == NO_ARM:
            raise XdrError(f"{op.name} has no arm for {selected!r}")
        if arm:
            self.put(<Op>op.parts[arm], get_field(op, value, arm))
        return 0

    cdef int put(self, Op op, object value) except -1:
        cdef int kind = op.kind
        if kind == STRUCT:
            return self.put_struct(op, value)
        if kind == UNION:
            return self.put_union(op, value)
        if kind == ENUM:
            return self.put_enum(op, value)
        if UINT32 <= kind <= INT64:
            return self.put_integer(kind, value)
        if kind == OPAQUE:
            return self.put_opaque(value, op.size)
        if kind == FIXED:
            return self.put_fixed(value, op.size)
        if kind == BULK:
            return self.put_bulk(value, op.size)
        if kind == BOOL:
            if not isinstance(value, int):
                raise XdrError(f"{value!r} is no bool")
            return self.put_uint32(1 if value else 0)
        if kind == OPTIONAL:
            self.put_uint32(value is not None)
            return self.put(op.element, value) if value is not None else 0
        if kind == VOID:
            if value is not None:
                raise XdrError(f"{value!r} where nothing is declared")
            return 0
        return self.put_list(op, value)

    def uint32(self, value):
        """Encode an unsigned integer."""
        self.put_integer(UINT32, value)

    def int32(self, value):
        """Encode a signed integer."""
        self.put_integer(INT32, value)

    def uint64(self, value):
        """Encode an unsigned hyper integer."""
        self.put_integer(UINT64, value)

    def int64(self, value):
        """Encode a signed hyper integer."""
        self.put_integer(INT64, value)

    def boolean(self, value):
        """Encode a truth value."""
        self.put_uint32(1 if value else 0)

    def fixed(self, data):
        """Encode fixed-length opaque data: the octets and their padding, no length."""
        self.put_fixed(data, -1)

    def opaque(self, data):
        """Encode variable-length opaque data: length, octets, padding."""
        self.put_opaque(data, 0xFFFFFFFF)

    def bulk(self, data):
        """Encode a DDP-eligible opaque: a Payload leaves only its length here, anything else goes inline."""
        self.put_bulk(data, 0xFFFFFFFF)

    def append(self, data):
        """Add octets that are XDR already, a multiple of four of them."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise XdrError(f"{type(data).__name__} is no opaque data")
        if memoryview(data).nbytes % 4:
            raise XdrError("XDR comes in units of four octets (RFC 4506 section 3)")
        self.put_fixed(data, -1)

    def splice(self, payload):
        """As :meth:`append`, of octets that stay where they are: a payload that is not ``eligible``."""
        cdef Py_ssize_t length = len(payload)
        if length % 4:
            raise XdrError("XDR comes in units of four octets (RFC 4506 section 3)")
        self.room(length)
        self.payloads.append((self.used, payload))
        self.chunked += length

    def encode(self, kind, value):
        """Encode ``value`` as the declared type ``kind`` (None: void)."""
        self.put(op_of(kind), value)

    def patch_uint32(self, position, value):
        """Overwrite the four octets at ``position`` of the buffer."""
        if not 0 <= position <= self.used - 4:
            raise XdrError(f"nothing was encoded at {position}")
        if not 0 <= value <= 0xFFFFFFFF:
            raise XdrError(f"{value!r} is no uint32")
        if self.exports:
            raise BufferError("a view of the buffer is held")
        store32(<uint8_t *>self.buffer + <Py_ssize_t>position, <uint32_t>value)

    def truncate(self, position):
        """Forget what was encoded since the buffer was ``position`` octets long; release payloads recorded since."""
        if not 0 <= position <= self.used or position % 4:
            raise XdrError(f"cannot go back to {position}")
        if self.exports:
            raise BufferError("a view of the buffer is held")
        self.used = position
        while self.payloads and self.payloads[len(self.payloads) - 1][0] > self.used:
            _, payload = self.payloads.pop()
            self.chunked -= padded(len(payload))
            payload.release()

    def getvalue(self):
        """A copy of the buffer."""
        return PyBytes_FromStringAndSize(self.buffer, self.used)

    def getbuffer(self):
        """The buffer. While the view is held nothing more can be encoded (BufferError)."""
        return memoryview(self)
