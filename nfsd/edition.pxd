"""C declarations of which edition of the exports' answers is current."""


cdef class Edition:
    cdef public unsigned long number
    cdef public bint ages
