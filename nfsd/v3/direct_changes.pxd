"""C declarations of NFSv3's native changes of names."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from nfsd.v3.direct_names cimport Nfs3Names
from nfsd.vfs.direct cimport Standing, changes_t
from nfsd.vfs.name_changes cimport NameChange
from nfsd.vfs.records cimport Node
from nfsd.wire.nfs3 cimport nfs_fh3_t
from rpcrdma.octets cimport opaque_t
from rpcrdma.place cimport Place
from rpcrdma.rpc.direct cimport Caller
from rpcrdma.rpc.work cimport Work


cdef class Nfs3Changes(Nfs3Names):
    cdef uint32_t new_name(self, opaque_t *name) noexcept
    cdef uint32_t changeable(self, Node directory) noexcept
    cdef int unprepared(self, Node node, Standing standing, Work brought) except -1
    cdef int carry(
        self, uint32_t procedure, NameChange change, Work brought, Standing standing, Node node, Node other, Place place
    ) except -1
    cdef uint8_t *store_around(self, uint8_t *at, NameChange change) except NULL
    cdef int made(self, NameChange change, Place place) except -1
    cdef int create(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1
    cdef int mkdir(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1
    cdef int make(
        self, uint32_t procedure, Standing standing, Node directory, opaque_t *name, changes_t *changes, int64_t length,
        uint32_t wrong, Place place, Work brought, bint guarded
    ) except -1
    cdef int symlink(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1
    cdef int remove(
        self, uint32_t procedure, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place,
        Work brought
    ) except -1
    cdef Node other_file(self, Caller caller, nfs_fh3_t *handle, bint *read_only)
    cdef int rename(
        self, Caller caller, Standing standing, Node source, const uint8_t *arguments, size_t size, Place place,
        Work brought
    ) except -1
    cdef int link(
        self, Caller caller, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place,
        Work brought
    ) except -1
