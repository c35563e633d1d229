"""C declarations of listings: what the encoders of NFS's versions see of an entry, and where they put it."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from nfsd.vfs.attributes cimport COUNTED, statx_t, statx_timestamp
from nfsd.vfs.handles cimport HANDLE, KERNEL, mac_key_t
from nfsd.vfs.nodes cimport NodeTable
from nfsd.vfs.recent_listing cimport RecentListing, noted_t, recent_t

cdef enum:
    TURN = 256                  # entries of one turn at most

# How a turn has ended, or what has become of one entry.
ctypedef enum outcome_t:
    TAKEN                       # the entry is in the listing
    SKIPPED                     # it is to be left out
    MORE                        # the turn is over, the listing is not
    END                         # the directory has no more entries
    FULL                        # the reply has no more room
    GROW                        # the memory has not: the same entry comes again when there is more
    NEEDS                       # the entry is to be completed on the loop
    FAILED                      # the listing fails with the status in ``error``
    ERROR                       # with the errno there

ctypedef struct entry_t:
    const uint8_t *name
    uint32_t name_size
    int error                   # the errno for which there is no status; 0: none, or not asked for
    uint64_t fileid             # by the directory
    uint64_t cookie
    statx_t *status             # NULL: there is none, and then no handle either
    uint64_t fsid[2]
    uint64_t mounted_on_fileid
    uint32_t handle_size
    uint8_t handle[HANDLE]
    uint32_t key_size
    uint8_t key[1 + KERNEL]     # of the inode, behind what is common to its file system

ctypedef struct mark_t:
    size_t at                   # where in the listing
    int64_t ctime               # or the store's count of changes
    bint counted
    uint32_t key_size
    uint8_t key[1 + KERNEL]

ctypedef struct found_t:
    uint32_t handle_size
    uint8_t handle[HANDLE]
    uint32_t name_size
    uint8_t name[255]

ctypedef struct listing_t:
    outcome_t (*encode)(listing_t *listing, entry_t *entry) noexcept nogil
    void *context               # the encoder's own
    # What is asked for, and how much of it.
    bint want_status
    bint want_handle
    bint skip_dots
    int64_t room                # octets the entries may still have
    int64_t names               # octets of names they may still have
    unsigned int octets_each    # about what an entry takes, to read no more names than are wanted
    # Where entries are put.
    uint8_t *start
    uint8_t *at
    uint8_t *end
    # The directory.
    int proc_fd
    int directory_fd
    int fd                      # open for reading; -1: not yet
    bint seek
    int64_t position
    bint rooted
    bint still                  # its names lead where they did when they were read, as long as it has this ctime
    statx_timestamp ctime
    uint64_t root_fileid
    uint64_t mnt_id
    uint32_t device_major
    uint32_t device_minor
    uint64_t fsid[2]
    bint has_mounted_on
    uint64_t mounted_on_fileid
    uint32_t export_id
    uint8_t fs_id[6]
    const mac_key_t *key
    int naming                  # flags for name_to_handle_at; 0: files go by their numbers
    # What has been read of it.
    uint8_t *dirents
    size_t dirents_at
    size_t dirents_end
    # What is remembered of it, and what is to be.
    recent_t *recalled          # the next entry, of those remembered; NULL: the directory is to be read
    bint may_look               # a turn may look at files that are not remembered
    bint stuck                  # the last turn has ended because it may not
    bint refused                # nothing remembered is to be used: for this caller, or any more
    noted_t noted
    # How far it is.
    unsigned int budget
    unsigned int taken
    uint64_t cookie             # of the last entry done with
    outcome_t outcome
    int error
    bint across                 # the entry that is to be completed is on another mount
    entry_t entry
    statx_t status
    # What the loop looks at after the turn.
    mark_t *marks               # change attributes; NULL: none are asked for
    unsigned int marked
    found_t *found              # files whose places are to be remembered; NULL: none are
    unsigned int found_count


cdef class Listing:
    """One listing, made in turns."""

    cdef listing_t state
    cdef object memory              # of the caller's, where the entries are put if there are many
    cdef object codec
    cdef object mount
    cdef bytes prefix
    cdef NodeTable nodes
    cdef RecentListing recent       # None: nothing is remembered, nor to be
    cdef readonly bint strayed      # the last turn has read none of the directory: its stream is elsewhere
    cdef unsigned int taken_before  # entries, before the turn
    cdef uint64_t noted_behind      # the cookie behind which the turn notes
    cdef uint64_t nodes_before      # how many nodes had been added before the turn
    cdef unsigned long heard_before # how many changes had been heard of

    cdef recent_t *next_recent(self) noexcept
    cdef int remember(self) except -1
    cdef int want_changes(self) except -1
    cdef object entry_of(self, entry_t *entry, NodeTable nodes)
    cdef int drain(self, NodeTable nodes) except -1


cdef inline void mark(listing_t *listing, entry_t *entry, uint8_t *at) noexcept nogil:
    """The change attribute at ``at`` is the loop's to fill in."""
    cdef mark_t *noted = &listing.marks[listing.marked]
    cdef uint32_t position
    noted.at = at - listing.start
    noted.counted = (entry.status.mask & COUNTED) != 0
    noted.ctime = entry.status.ctime.seconds * 1000000000 + entry.status.ctime.nanoseconds
    if noted.counted:
        noted.ctime = <int64_t>entry.status.count
    noted.key_size = entry.key_size
    for position in range(entry.key_size):
        noted.key[position] = entry.key[position]
    listing.marked += 1
