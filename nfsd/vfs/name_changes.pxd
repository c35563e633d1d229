"""C declarations of changes of directories' names, here or on a worker."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport NAME_MAX, changes_t
from nfsd.vfs.executor cimport Job
from nfsd.vfs.kernel cimport kernel_handle_t
from nfsd.vfs.records cimport Inode, Node, OpenFile
from nfsd.vfs.stored_files cimport StoredDirectories, key_t, stored_names_t

cdef enum Kind:
    MAKE_FILE
    MAKE_DIRECTORY
    MAKE_LINK                   # symbolic
    REMOVE_NAME                 # that is no directory's
    REMOVE_DIRECTORY
    REMOVE_ANY
    RENAME
    ADD_NAME                    # of a file that has one

ctypedef struct name_t:
    int directory
    char path[NAME_MAX + 2]
    bint there                  # it leads to ``kernel``, as far as is known; or to nothing
    kernel_handle_t kernel

ctypedef struct name_change_t:
    Kind kind
    name_t name                 # to be made or removed; of a rename the new one
    name_t old                  # of a rename
    bint certain                # what is known of the names has just been looked at
    bint across                 # a rename from one directory to another
    changes_t initial           # of a new file: what its creation does not set; ``mode`` is then set once more
    int64_t size                # likewise; 0: nothing
    uint32_t mode               # of a new file, to be created with
    uint32_t umask              # to be taken from it, unless the directory has a default ACL (RFC 8275 section 3)
    bint opens                  # the new file is going to be opened: it stays open, and what its maker may do is seen
    int access                  # that: bits of ACCESS3_*; -1
    const char *text            # of a symbolic link
    int file                    # to get a further name
    int proc                    # /proc/self/fd
    int descriptor              # of a new regular file, open for reading and writing; -1
    int naming                  # O_PATH, of a new file or of one that is to lose a name; -1
    int known                   # instead, of one that is to lose a name: the descriptor of its node; -1
    bint short_of_descriptors
    int error                   # errno, or 0; then nothing has been done, or nothing is left of it
    bint nothing                # a rename that does nothing: both names are the same file's
    statx_t before              # of the directory
    statx_t after
    statx_t old_before          # of a rename's old one, if it is another
    statx_t old_after
    statx_t status              # of the file that was made or has got a name, or of what has lost one
    stored_names_t *stored      # where the names are, if they are a store's; or NULL
    key_t directory_key         # what that calls the directory
    key_t file_key              # and the file


cdef class NameChange(Job):
    cdef Node directory
    cdef Node old_directory     # of a rename; perhaps the same
    cdef name_change_t data
    cdef object credential
    cdef OpenFile opened        # the new file, with a count, if it is going to be opened
    cdef object share           # a place for the new file's descriptor; None: it does not stay open
    cdef bytes text
    cdef Inode victim           # of what is to lose a name, if it is known
    cdef Node loser             # likewise, and it is in memory: the node that ``known`` is the descriptor of
    cdef Inode moved            # of what is renamed or gets a name, if it is known
    cdef Node made              # also the file with a further name
    cdef uint64_t change_before # the directory's change attribute before it, and after
    cdef uint64_t change_after
    cdef uint64_t old_change_before     # that of the old one
    cdef uint64_t old_change_after
    cdef bint has_turns         # those of two directories
    cdef bint held              # the directories are not to be delegated
    cdef StoredDirectories stored       # or None

    cdef int run_here(self) except -1
    cdef int settle(self) except -1
    cdef int hold(self, Inode victim, Inode moved) except -1


ctypedef struct walk_t:
    int directories[2]          # -1: no more
    char paths[2][NAME_MAX + 2]
    int errors[2]               # errno, or 0
    kernel_handle_t kernels[2]  # of what the names lead to
    int mounts[2]


cdef class Walk(Job):
    """Names are looked up: the kernel has them in memory afterwards, and what they lead to is told. While others rename
    files, the kernel may say of names that it does have that they would have to be waited for."""

    cdef Node one               # the directories
    cdef Node other
    cdef walk_t data
    cdef object credential


cdef NameChange change_of_kind(Kind kind)
