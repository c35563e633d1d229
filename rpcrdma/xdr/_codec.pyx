"""The native codec: walks the same nodes as the reference codec, with the same answers (:mod:`rpcrdma.xdr.codec`).

Operation
    A node is compiled once into an Op: kinds and bounds as C integers, parts in a tuple, small discriminants in an
    array. Decoding makes objects without their constructors and stores each field at its slot's offset in the object;
    encoding reads it from there.

Slot offsets
    The offset of a slot is in its member descriptor. It is believed only if the descriptor is a slot of that very class,
    the offset lies within the object, and a value set by name is found there; otherwise fields are set and read by name.

Buffer ownership
    The encoder owns its buffer, lends views of it (``getbuffer``), and refuses to change it while a view is out. The
    decoder holds the exporter of ``data`` and gives slices of it, or of a chunk, for DDP-eligible items.

Garbage collection
    Objects whose declared fields can hold no containers are untracked: no cycle can go through them, and a message
    makes many.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLong, PyLong_AsUnsignedLongLong
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from types import MemberDescriptorType

from rpcrdma.xdr import codec, schema
from rpcrdma.xdr.errors import XdrError, XdrOverflow
from rpcrdma.xdr.payload import Payload
from rpcrdma.xdr.schema import Node, node_of


cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    int T_OBJECT_EX

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject *cls, Py_ssize_t items)
    void PyObject_GC_UnTrack(void *value)

cdef extern from "<endian.h>" nogil:
    uint32_t be32toh(uint32_t)
    uint64_t be64toh(uint64_t)
    uint32_t htobe32(uint32_t)
    uint64_t htobe64(uint64_t)


# The schema's kinds, as constants of C; checked below.
cdef enum:
    VOID = 0
    UINT32 = 1
    INT32 = 2
    UINT64 = 3
    INT64 = 4
    BOOL = 5
    ENUM = 6
    OPAQUE = 7
    FIXED = 8
    BULK = 9
    ARRAY = 10
    FIXED_ARRAY = 11
    CHAIN = 12
    OPTIONAL = 13
    STRUCT = 14
    UNION = 15
    SMALL = 128
    NO_ARM = -1

if tuple(schema.KIND_NAMES) != (
    "void", "uint32", "int32", "uint64", "int64", "bool", "enum", "opaque", "fixed", "bulk",
    "array", "fixed_array", "chain", "optional", "struct", "union",
):
    raise ImportError("the native codec was built for another schema")


cdef inline uint32_t load32(const unsigned char *at) noexcept:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return be32toh(value)


cdef inline uint64_t load64(const unsigned char *at) noexcept:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return be64toh(value)


cdef inline void store32(char *at, uint32_t value) noexcept:
    value = htobe32(value)
    memcpy(at, &value, 4)


cdef inline void store64(char *at, uint64_t value) noexcept:
    value = htobe64(value)
    memcpy(at, &value, 8)


cdef inline Py_ssize_t padded(Py_ssize_t length) noexcept:
    return (length + 3) & ~<Py_ssize_t>3


cdef Py_ssize_t slot_offset(object cls, str name) except -2:
    """The offset of slot ``name`` in objects of ``cls``, -1 if it cannot be relied on."""
    cdef object descriptor = cls.__dict__.get(name)
    cdef object probe, sentinel
    cdef Py_ssize_t offset
    if type(descriptor) is not MemberDescriptorType or descriptor.__objclass__ is not cls:
        return -1
    if (<PyMemberDescrObject *><PyObject *>descriptor).d_member.type != T_OBJECT_EX:
        return -1
    offset = (<PyMemberDescrObject *><PyObject *>descriptor).d_member.offset
    if offset < <Py_ssize_t>sizeof(PyObject) or offset + <Py_ssize_t>sizeof(PyObject *) > cls.__basicsize__:
        return -1
    probe, sentinel = cls.__new__(cls), object()
    setattr(probe, name, sentinel)
    return offset if (<PyObject **>(<char *><PyObject *>probe + offset))[0] == <PyObject *>sentinel else -1


cdef class Op:
    """A node, compiled."""

    def __cinit__(self):
        self.offsets = NULL

    def __dealloc__(self):
        free(self.offsets)

    def __init__(self, node):
        cdef Py_ssize_t index
        self.kind = node.kind
        self.size = node.size
        self.min_size = node.min_size
        self.strict = node.strict
        self.name = node.name
        self.cls = node.cls
        self.element = op_of_node(node.element) if node.element is not None else None
        self.members = node.members
        self.names = tuple(name for name, _ in node.fields)
        self.parts = tuple(op_of_node(part) for _, part in node.fields)
        self.count = len(self.parts)
        self.arms = node.arms
        self.default = NO_ARM if node.default is None else node.default
        for index in range(SMALL):
            self.small[index] = node.arms.get(index, self.default)
        self.small_members = [node.members.get(index) for index in range(SMALL)]
        self.leaf = all(part.kind <= FIXED for _, part in node.fields)
        self.direct = False
        if self.kind in (STRUCT, UNION):
            self.find_slots()

    cdef int find_slots(self) except -1:
        cdef Py_ssize_t index
        self.offsets = <Py_ssize_t *>malloc(self.count * sizeof(Py_ssize_t))
        if self.offsets == NULL:
            raise MemoryError
        for index in range(self.count):
            self.offsets[index] = slot_offset(self.cls, self.names[index])
        self.direct = all([self.offsets[index] >= 0 for index in range(self.count)])
        return 0

    @property
    def uses_slots(self):
        """Whether fields are stored by offset; for tests."""
        return self.direct


cdef Op op_of_node(node):
    if node.native is None:
        node.native = Op(node)
    return <Op>node.native


cdef dict ops = {}
cdef dict alias_ops = {}


cdef inline Op op_of(object kind):
    cdef object found
    if isinstance(kind, type):
        found = ops.get(kind)
        if found is not None:
            return <Op>found
    else:
        # Hashing an alias of typing takes longer than decoding it; the entry keeps it alive, so its id stays its own.
        found = alias_ops.get(<size_t><PyObject *>kind)
        if found is not None:
            return <Op>(<tuple>found)[1]
    return find_op(kind)


cdef Op find_op(object kind):
    cdef Op op = op_of_node(kind if isinstance(kind, Node) else node_of(kind))
    if isinstance(kind, type):
        ops[kind] = op
    elif len(alias_ops) < 4096:
        alias_ops[<size_t><PyObject *>kind] = (kind, op)
    return op


cdef inline int arm_of(Op op, long long value) except -2:
    if 0 <= value < SMALL:
        return op.small[value]
    return op.arms.get(value, op.default)


cdef inline object get_field(Op op, object value, Py_ssize_t index):
    cdef PyObject *found
    if op.direct:
        found = (<PyObject **>(<char *><PyObject *>value + op.offsets[index]))[0]
        if found != NULL:
            return <object>found
    return getattr(value, <str>op.names[index])


cdef inline int set_field(Op op, object made, Py_ssize_t index, object value) except -1:
    cdef PyObject **slot
    if op.direct:
        slot = <PyObject **>(<char *><PyObject *>made + op.offsets[index])
        Py_INCREF(value)
        slot[0] = <PyObject *>value  # the object is new: nothing was there
        return 0
    setattr(made, <str>op.names[index], value)
    return 0


cdef inline object make(Op op):
    if op.direct:
        return PyType_GenericAlloc(<PyTypeObject *><PyObject *>op.cls, 0)
    return op.cls.__new__(op.cls)


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
        store32(self.reserve(4), value)
        return 0

    cdef int put_uint64(self, uint64_t value) except -1:
        store64(self.reserve(8), value)
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
        store32(self.buffer + <Py_ssize_t>position, <uint32_t>value)

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
