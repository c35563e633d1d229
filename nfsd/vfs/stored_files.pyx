"""Files and names of stores that workers have at hand themselves (contract: ``stored_files.pyi``).

Owns :class:`StoredFile` and :class:`StoredDirectories`; imports nothing of stores. A store whose client library is native has
its data moved like that of local files (:mod:`nfsd.vfs.transfers`): each READ is a job, WRITEs of one caller go in a row, and
no thread takes the interpreter for them. Common changes of its names are jobs, too (:mod:`nfsd.vfs.name_changes`). The rest
are its methods (:mod:`nfsd.backends.interface`).
"""


cdef class StoredDirectories:
    cdef int hold(self) except -1:
        raise NotImplementedError

    cdef int let_go(self) except -1:
        raise NotImplementedError


cdef class StoredFile:
    cdef bint hold(self):
        raise NotImplementedError

    cdef int let_go(self) except -1:
        raise NotImplementedError
