"""C declarations of fsyncs that native calls wait for."""

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.executor cimport Job
from nfsd.vfs.journal_files cimport journal_file_t
from nfsd.vfs.records cimport Node, OpenFile
from nfsd.vfs.syncing cimport GroupSync, Sharer
from nfsd.vfs.write_back cimport WriteBack

ctypedef struct flush_t:
    flush_t *next               # of the same commit
    int *descriptors            # of one file
    int count
    int error                   # the first errno, or 0


ctypedef struct commit_t:
    flush_t *files              # whose data is to be on the disk before
    bint changes                # of names or attributes: there are some
    journal_file_t *file        # of the file system
    int root                    # a directory of it
    int directory               # if the names in this one are all that has been changed; -1: they are not
    int unopened                # errno of a file that could not be made
    int error


cdef class Commit(Job):
    """The journal of a file system is committed, by a worker, with the data of some files."""

    cdef commit_t data
    cdef object stable
    cdef object mount
    cdef object done            # told the errno, or 0
    cdef Node directory         # None: there are changes of others
    cdef list parts             # of it

    cdef int take(self, object sharer) except -1
    cdef bint is_one(self) noexcept


cdef class Fsync(Job):
    """A file is synchronised through one or several descriptors, by a worker."""

    cdef flush_t data
    cdef GroupSync group
    cdef WriteBack write_back    # of the store that the file is in
    cdef list through           # OpenFiles
    cdef bint gathered          # a commit is to do it; else it has a job of its own
    cdef Commit within          # that one; None: it has yet to begin

    cdef int add(self, list more) except -1


cdef class Part(Sharer):
    """An fsync that a commit of the journal is to do, with others."""

    cdef Fsync fsync
    cdef object service
    cdef object mount


cdef class Sync(Sharer):
    """A file's changes are to be on stable storage, and perhaps those of another one behind it."""

    cdef Node node              # as the call named the file
    cdef statx_t before         # for a COMMIT, how the file was
    cdef object service
    cdef object credential      # of who asks
    cdef Node behind            # is synchronised afterwards; None: nothing is
    cdef bint journal           # a commit of the file system's journal is enough for both
    cdef OpenFile opened        # through which; None: it has to be found
    cdef object failures        # of fsync, before a change of data that is to be called stable

    cdef GroupSync group(self)
    cdef bint names_in(self, Node directory) except -1
    cdef bint found(self) except -1
    cdef bint goes_with_others(self) except -1
    cdef int settled(self, int error) except -1


cdef Sync sync_of(object service, Node node, object credential)
cdef Sync change_of(object service, Node node, object credential)
cdef Sync sync_through(object service, Node node, OpenFile opened, object failures)
