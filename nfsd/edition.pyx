"""Which edition of the exports' answers is current (contract: ``edition.pyi``). Imports nothing.

Native calls keep what the exports have said of a caller. They compare two numbers before they use it.
"""


cdef class Edition:
    pass
