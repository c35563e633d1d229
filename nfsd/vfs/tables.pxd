"""C declarations of what native operations share of the file service."""

from nfsd.edition cimport Edition
from nfsd.vfs.executor cimport Executor
from nfsd.vfs.identity cimport Switch
from nfsd.vfs.nodes cimport NodeTable
from nfsd.vfs.open_files cimport OpenFiles


cdef class Tables:
    cdef readonly NodeTable nodes
    cdef readonly OpenFiles open_files
    cdef readonly Edition edition
    cdef readonly object unstable       # UnstableWrites
    cdef readonly object shares         # Shares
    cdef readonly object known          # KnownFiles
    cdef readonly object close_later    # of Chains
    cdef readonly Executor executor     # None: the service has not started
    cdef Switch switch                  # the executor's
    cdef int proc_fd                    # /proc/self/fd
