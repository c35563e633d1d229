"""Compiled nodes, and the ways to reach into octets and objects that the two halves of the native codec share."""

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint32_t


cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject *cls, Py_ssize_t items)


# The schema's kinds, as constants of C; _op.pyx checks them.
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


cdef class Op:
    cdef int kind
    cdef uint32_t size
    cdef uint32_t min_size
    cdef bint strict
    cdef bint leaf
    cdef bint direct
    cdef str name
    cdef Op element
    cdef object cls
    cdef dict members
    cdef tuple parts
    cdef tuple names
    cdef Py_ssize_t count
    cdef Py_ssize_t *offsets
    cdef dict arms
    cdef int default
    cdef short small[128]
    cdef list small_members

    cdef int find_slots(self) except -1


cdef Op find_op(object kind)
cdef Op op_of(object kind)


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
