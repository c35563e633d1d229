"""Declarations compiled for C: one Op for each node, with the slots of its class.

Owns the Ops and the decision whether a slot's offset can be relied on; imports the schema.

Slot offsets
    The offset of a slot is in its member descriptor. It is believed only if the descriptor is a slot of that very class,
    the offset lies within the object, and a value set by name is found there; otherwise fields are set and read by name.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, malloc

from types import MemberDescriptorType

from rpcrdma.xdr import schema
from rpcrdma.xdr.schema import Node, node_of


cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    int T_OBJECT_EX


if tuple(schema.KIND_NAMES) != (
    "void", "uint32", "int32", "uint64", "int64", "bool", "enum", "opaque", "fixed", "bulk",
    "array", "fixed_array", "chain", "optional", "struct", "union",
):
    raise ImportError("the native codec was built for another schema")


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


cdef Op op_of(object kind):
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
