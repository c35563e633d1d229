"""C declarations of NFSv3's native changes of names."""

from libc.stdint cimport uint8_t, uint32_t

from nfsd.v3.names cimport Nfs3Names
from nfsd.v3.name_arguments cimport name_arguments_t
from nfsd.vfs.native_files cimport Standing, when_t
from nfsd.vfs.name_changes cimport NameChange
from nfsd.vfs.records cimport Node
from rpcrdma.octets cimport opaque_t
from rpcrdma.place cimport Place
from rpcrdma.rpc.work cimport Work


cdef class Nfs3Changes(Nfs3Names):
    cdef int run_named(
        self, uint32_t procedure, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place,
        Work brought,
    ) except -1
    cdef uint32_t new_name(self, opaque_t *name) noexcept
    cdef uint32_t changeable(self, Node directory) noexcept
    cdef int unprepared(
        self, uint32_t procedure, Node node, Node other, Standing standing, Place place, Work brought
    ) except -1
    cdef int carry(
        self, uint32_t procedure, NameChange change, Work brought, Standing standing, Node node, Node other, Place place
    ) except -1
    cdef int make(
        self, uint32_t procedure, Standing standing, Node directory, name_arguments_t *arguments, Place place, Work brought
    ) except -1
    cdef NameChange to_make(
        self, uint32_t procedure, Standing standing, Node directory, name_arguments_t *arguments
    )
    cdef object made_by_errand(
        self, uint32_t procedure, Standing standing, Node directory, name_arguments_t *arguments
    )
    cdef int remove(
        self, uint32_t procedure, Standing standing, Node directory, name_arguments_t *arguments, Place place,
        Work brought
    ) except -1
    cdef Node other_file(self, name_arguments_t *arguments, bint *read_only)
    cdef int arrive_there(self, Node node, Standing standing, name_arguments_t *arguments, Work brought) except -1
    cdef int rename(
        self, Standing standing, Node source, name_arguments_t *arguments, Place place, Work brought
    ) except -1
    cdef int store_renamed(self, NameChange change, Place place) except -1
    cdef int link(
        self, Standing standing, Node node, name_arguments_t *arguments, Place place, Work brought
    ) except -1


cdef object time_in(when_t *when)
