"""C declarations of the parts of networks, for who counts what they have."""


cdef class Bag:
    cdef list _things
    cdef dict _places
    cdef int put(self, thing) except -1
    cdef bint take(self, thing) except -1


cdef class Part:
    cdef object __weakref__
    cdef readonly str key
    cdef readonly Part parent
    cdef readonly long long floor
    cdef public long long has
    cdef readonly long long weight
    cdef readonly long long most
    cdef long long _least
    cdef long long _upto
    cdef bint _ranked
    cdef bint coarse
    cdef readonly dict _ranks       # Bag by weight

    cpdef int grow(self) except -1
    cpdef int shrink(self) except -1
    cpdef int find(self) except -1
    cpdef int hide(self) except -1
    cdef int weigh(self) except -1
    cdef int enlist(self, Part part) except -1
    cdef int delist(self, Part part) except -1
