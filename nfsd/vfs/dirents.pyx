"""One turn of a listing: reading names and looking at files, without the interpreter's lock (getdents(2), statx(2)).

Owns nothing; :mod:`nfsd.vfs.listing` owns the listing, and has turns run where they may.

A turn may note what it has found, to be remembered for a moment (:mod:`nfsd.vfs.recent_listing`), and another list what is
remembered. The kernel is asked then whether the caller may read the directory and search it, and whether it is still
the same.

Handle and attributes of an entry are of the same file. Either both are asked of one descriptor, or the name has led to the
same file twice: nobody has changed the directory since its names were read. That costs two system calls instead of four,
and one look at the directory behind each turn. getdents(2) waits for changes that are under way, and any later one gives
the directory another ctime, because the one it had before was older than a tick of the clock (:mod:`nfsd.vfs.change`). If
there is another ctime, the turn is made once more, with descriptors. Where no handle is wanted the name is looked up once,
for the attributes alone.
"""

import os

from libc.errno cimport EINTR, errno
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from nfsd.vfs.attributes cimport ATTRIBUTE_MOUNT_ROOT, statx_t
from nfsd.vfs.lanes cimport job_t
from nfsd.vfs.handles cimport KERNEL, sign_handle
from nfsd.vfs.kernel cimport (
    AT_EMPTY_PATH, AT_NO_AUTOMOUNT, AT_SYMLINK_NOFOLLOW, SEEK_SET, SYS_getdents64, SYS_name_to_handle_at, SYS_openat,
    SYS_openat2, SYS_statx, c_close, c_lseek, c_syscall, how_t, kernel_handle_t,
)
from nfsd.vfs.listing cimport END, ERROR, MORE, NEEDS, SKIPPED, TAKEN, entry_t, found_t, listing_t, outcome_t
from nfsd.vfs.native_files cimport access_to
from nfsd.vfs.recent_listing cimport LARGEST_NOTE, handle_of, key_of, name_of, next_of, recent_t
from nfsd.wire.nfs3 cimport ACCESS3_LOOKUP, ACCESS3_READ
from rpcrdma.octets cimport store32, store64

from nfsd.vfs.syscalls import (
    NUMBERED as _NUMBERED,
    O_PATH as _O_PATH,
    RESOLVE_COMPONENT as _RESOLVE_COMPONENT,
    STATX_MASK as _STATX_MASK,
)

cdef extern from "stdio.h" nogil:
    int snprintf(char *sink, size_t size, const char *format, ...)

cdef enum:
    FEWEST = 1024               # octets read of a directory at a time
    NAME_AT = 19                # of the name in a struct linux_dirent64
    S_IFMT = 0o170000
    S_IFREG = 0o100000
    S_IFLNK = 0o120000

cdef unsigned int STATX_MASK = _STATX_MASK
cdef int NUMBERED = _NUMBERED
cdef int OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

cdef struct dirent_t:
    uint64_t ino
    uint64_t offset
    unsigned short size
    uint8_t type

cdef how_t HOW
HOW.flags = _O_PATH
HOW.mode = 0
HOW.resolve = _RESOLVE_COMPONENT
cdef how_t *how = &HOW


cdef bint is_dots(const uint8_t *name, uint32_t size) noexcept nogil:
    return name[0] == c"." and (size == 1 or (size == 2 and name[1] == c"."))


cdef void number_file(listing_t *listing, kernel_handle_t *kernel) noexcept nogil:
    """What stands for the handle of the file just looked at (``numbered`` of :mod:`nfsd.vfs.syscalls`)."""
    cdef statx_t *status = &listing.status
    cdef bint usual = status.dev_major == listing.device_major and status.dev_minor == listing.device_minor
    kernel.kind, kernel.size = NUMBERED, 16
    store64(kernel.octets, status.ino)
    store32(kernel.octets + 8, 0 if usual else status.dev_major)
    store32(kernel.octets + 12, 0 if usual else status.dev_minor)


cdef void name_handle(listing_t *listing, entry_t *entry, int descriptor, const char *name, int flags) noexcept nogil:
    """The handle of what a name below a descriptor, or the descriptor itself, leads to; without one, its attributes are of no
    use either."""
    cdef kernel_handle_t kernel
    cdef int mount = <int>listing.mnt_id
    kernel.size = sizeof(kernel.octets)
    if listing.naming == 0:
        number_file(listing, &kernel)
    elif c_syscall(SYS_name_to_handle_at, descriptor, name, &kernel, &mount, flags) != 0:
        kernel.size = 0
    elif <uint64_t>mount != listing.mnt_id:
        listing.across = True  # mounted on the name since the look
        return
    elif listing.naming != AT_EMPTY_PATH and kernel.size > KERNEL:
        number_file(listing, &kernel)
    if kernel.size:
        entry.handle_size = sign_handle(
            listing.key, listing.export_id, listing.fs_id, kernel.kind, kernel.octets, kernel.size, entry.handle
        )
    if entry.handle_size == 0:
        entry.status = NULL
        return
    entry.key_size = 1 + kernel.size
    entry.key[0] = <uint8_t>kernel.kind
    memcpy(entry.key + 1, kernel.octets, kernel.size)


cdef void look_through(listing_t *listing, entry_t *entry, const char *name) noexcept nogil:
    """Attributes and handle of a file, of one descriptor."""
    cdef statx_t *status = &listing.status
    cdef long descriptor = c_syscall(SYS_openat2, listing.directory_fd, name, how, sizeof(how_t))
    if descriptor < 0:
        entry.error = errno
        return
    if c_syscall(SYS_statx, descriptor, b"", AT_EMPTY_PATH, STATX_MASK, status) == 0:
        entry.status = status
        listing.across = status.mnt_id != listing.mnt_id
        if not listing.across:
            name_handle(listing, entry, <int>descriptor, b"", listing.naming)
    else:
        entry.error = errno
    c_close(<int>descriptor)


cdef void look_at(listing_t *listing, entry_t *entry, const char *name) noexcept nogil:
    """Attributes of what a name leads to, and a handle if one is wanted, of what it leads to then."""
    cdef statx_t *status = &listing.status
    if c_syscall(
        SYS_statx, listing.directory_fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_MASK, status
    ) != 0:
        entry.error = errno
        return
    entry.status = status
    listing.across = status.mnt_id != listing.mnt_id
    if listing.want_handle and not listing.across:
        name_handle(listing, entry, listing.directory_fd, name, listing.naming & ~AT_EMPTY_PATH)


cdef void look(listing_t *listing, entry_t *entry) noexcept nogil:
    """Ask the kernel what the encoder wants to know, as the caller."""
    cdef statx_t *status = &listing.status
    cdef const char *name = <const char *>entry.name
    entry.error = 0
    entry.status = NULL
    entry.handle_size = entry.key_size = 0
    if listing.rooted and entry.name_size == 2 and is_dots(entry.name, 2):
        # The parent has a handle only where it is known to be inside the export, which takes a walk to the top.
        entry.fileid = listing.root_fileid
        name = b"."
    if not listing.want_status:
        return
    # A descriptor of the parent is refused where the parent is outside (RESOLVE_BENEATH).
    if listing.want_handle and (not listing.still or is_dots(entry.name, entry.name_size)):
        look_through(listing, entry, name)
    else:
        look_at(listing, entry, name)
    if entry.status != NULL and not listing.across:
        place(listing, entry)


cdef void place(listing_t *listing, entry_t *entry) noexcept nogil:
    """Which file system the file is in, and what is there in its directory's."""
    cdef statx_t *status = &listing.status
    entry.fsid[0] = listing.fsid[0]
    entry.fsid[1] = listing.fsid[1]
    if status.dev_major != listing.device_major or status.dev_minor != listing.device_minor:
        # A btrfs subvolume: numbers its files anew.
        entry.fsid[1] = <uint64_t>status.dev_major << 32 | status.dev_minor
    entry.mounted_on_fileid = status.ino
    if status.attributes & ATTRIBUTE_MOUNT_ROOT and listing.has_mounted_on:
        entry.mounted_on_fileid = listing.mounted_on_fileid


cdef bint open_stream(listing_t *listing) noexcept nogil:
    """Have the directory open where the listing goes on."""
    cdef char path[16]
    cdef long descriptor
    if listing.fd < 0:
        snprintf(path, sizeof(path), b"%d", listing.directory_fd)
        descriptor = c_syscall(SYS_openat, listing.proc_fd, path, OPEN_DIRECTORY)
        if descriptor < 0:
            return False
        listing.fd = <int>descriptor
    if listing.seek:
        listing.seek = False
        return c_lseek(listing.fd, listing.position, SEEK_SET) >= 0
    return True


cdef bint read_names(listing_t *listing) noexcept nogil:
    """The next block of names: about as many as there is room for, since who comes next has to look for the others."""
    cdef size_t size = <size_t>(listing.room // listing.octets_each) * DIRENT if listing.room > 0 else 0
    cdef long got
    size = min(size, <size_t>listing.budget * DIRENT)
    size = min(max(size, <size_t>FEWEST), <size_t>DIRENTS)
    while True:
        got = c_syscall(SYS_getdents64, listing.fd, listing.dirents, size)
        if got >= 0 or errno != EINTR:
            break
    listing.dirents_at = 0
    listing.dirents_end = got if got > 0 else 0
    return got >= 0


cdef void done_with_entry(listing_t *listing) noexcept nogil:
    listing.cookie = listing.entry.cookie
    if listing.recalled != NULL:
        listing.recalled = next_of(listing.recalled)
    elif listing.dirents_at < listing.dirents_end:
        listing.dirents_at += (<dirent_t *>(listing.dirents + listing.dirents_at)).size


cdef void note_found(listing_t *listing, entry_t *entry) noexcept nogil:
    cdef found_t *noted = &listing.found[listing.found_count]
    if entry.handle_size == 0 or entry.name_size > sizeof(noted.name) or is_dots(entry.name, entry.name_size):
        return
    noted.handle_size = entry.handle_size
    memcpy(noted.handle, entry.handle, entry.handle_size)
    noted.name_size = entry.name_size
    memcpy(noted.name, entry.name, entry.name_size)
    listing.found_count += 1


cdef outcome_t next_entry(listing_t *listing) noexcept nogil:
    """One entry of those that have been read."""
    cdef dirent_t *dirent = <dirent_t *>(listing.dirents + listing.dirents_at)
    cdef entry_t *entry = &listing.entry
    entry.name = <const uint8_t *>dirent + NAME_AT
    entry.name_size = 0
    while entry.name[entry.name_size]:
        entry.name_size += 1
    entry.fileid = dirent.ino
    entry.cookie = to_cookie(dirent.offset)
    return list_entry(listing, entry)


cdef outcome_t list_entry(listing_t *listing, entry_t *entry) noexcept nogil:
    """Put it into the listing, with what is remembered of its file, or what the kernel says."""
    cdef recent_t *recent = listing.recalled
    cdef bint looked = recent != NULL and recent.looked and listing.want_status
    cdef outcome_t outcome
    listing.across = False
    if listing.skip_dots and is_dots(entry.name, entry.name_size):
        outcome = SKIPPED
    elif recent != NULL and listing.want_status and not looked and not listing.may_look:
        listing.stuck = True
        return MORE
    else:
        if looked:
            recall(listing, entry)
        else:
            look(listing, entry)
        outcome = NEEDS if listing.across else listing.encode(listing, entry)
    if outcome == TAKEN or outcome == SKIPPED:
        if outcome == TAKEN:
            listing.taken += 1
        if listing.found != NULL:
            note_found(listing, entry)
        if listing.noted.at != NULL:
            note(listing, entry)
        done_with_entry(listing)
    return outcome


cdef void note(listing_t *listing, entry_t *entry) noexcept nogil:
    """What is to be remembered."""
    cdef recent_t *recent = <recent_t *>listing.noted.at
    recent.next, recent.ends = NULL, False
    recent.cookie, recent.fileid = entry.cookie, entry.fileid
    recent.looked = is_simple(listing, entry)
    recent.handle_size = entry.handle_size if recent.looked else 0
    recent.key_size = entry.key_size if recent.looked else 0
    recent.name_size = entry.name_size
    memcpy(recent.status, &listing.status, sizeof(recent.status))
    memcpy(name_of(recent), entry.name, entry.name_size + 1)
    memcpy(handle_of(recent), entry.handle, recent.handle_size)
    memcpy(key_of(recent), entry.key, recent.key_size)
    recent.size = <uint32_t>(key_of(recent) + recent.key_size - listing.noted.at + 7) & ~<uint32_t>7
    listing.noted.at += recent.size


cdef bint is_simple(listing_t *listing, entry_t *entry) noexcept nogil:
    """Whether other processes' changes of the file are told of in this directory: it has no other name, and is none whose
    own contents are names."""
    cdef int kind = listing.status.mode & S_IFMT
    return (
        entry.status != NULL and entry.key_size > 0 and not is_dots(entry.name, entry.name_size)
        and (kind == S_IFREG or kind == S_IFLNK) and listing.status.nlink == 1
        and not listing.status.attributes & ATTRIBUTE_MOUNT_ROOT
    )


cdef void list_names(listing_t *listing) noexcept nogil:
    """List names until the turn has to end."""
    cdef unsigned int left = listing.budget
    cdef outcome_t outcome
    if not open_stream(listing):
        listing.outcome, listing.error = ERROR, errno
        return
    while True:
        if listing.dirents_at >= listing.dirents_end:
            if not read_names(listing):
                listing.outcome, listing.error = ERROR, errno
                return
            if listing.dirents_end == 0:
                listing.outcome = END
                return
        if left == 0 or (listing.noted.at != NULL and listing.noted.end - listing.noted.at < <Py_ssize_t>LARGEST_NOTE):
            listing.outcome = MORE
            return
        left -= 1
        outcome = next_entry(listing)
        if outcome != TAKEN and outcome != SKIPPED:
            listing.outcome = outcome
            return


cdef bint has_changed(listing_t *listing) noexcept nogil:
    """Whether the directory may have changed since its names were read."""
    cdef statx_t now
    if c_syscall(SYS_statx, listing.directory_fd, b"", AT_EMPTY_PATH, STATX_MASK, &now) != 0:
        return True
    return now.ctime.seconds != listing.ctime.seconds or now.ctime.nanoseconds != listing.ctime.nanoseconds


cdef void take_turn(job_t *job) noexcept nogil:
    cdef listing_t *listing = <listing_t *>job.data
    cdef listing_t before
    cdef int fd
    if not listing.still:
        list_names(listing)
        return
    before = listing[0]
    list_names(listing)
    if not has_changed(listing):
        return
    # Once more, from the names on: what has been put behind those of earlier turns goes.
    fd = listing.fd
    listing[0] = before
    listing.still = False
    listing.fd = fd
    listing.dirents_at = listing.dirents_end = 0
    listing.seek, listing.position = True, to_offset(listing.cookie)
    listing.noted.at = NULL
    list_names(listing)


# -- what is remembered -------------------------------------------------------------------------------------------
cdef void recall(listing_t *listing, entry_t *entry) noexcept nogil:
    """What the kernel has said of a file."""
    cdef recent_t *recent = listing.recalled
    memcpy(&listing.status, recent.status, sizeof(recent.status))
    entry.error = 0
    entry.status = &listing.status
    entry.handle_size, entry.key_size = recent.handle_size, recent.key_size
    memcpy(entry.handle, handle_of(recent), recent.handle_size)
    memcpy(entry.key, key_of(recent), recent.key_size)
    place(listing, entry)


cdef outcome_t recalled_entry(listing_t *listing) noexcept nogil:
    """The next of those entries."""
    cdef recent_t *recent = listing.recalled
    cdef entry_t *entry = &listing.entry
    entry.name, entry.name_size = name_of(recent), recent.name_size
    entry.fileid, entry.cookie = recent.fileid, recent.cookie
    return list_entry(listing, entry)


cdef void recall_entries(listing_t *listing) noexcept nogil:
    """List what is remembered, until the turn has to end."""
    cdef unsigned int left = listing.budget
    cdef outcome_t outcome
    cdef bint last
    listing.stuck = False
    listing.outcome = MORE
    while left and listing.recalled != NULL:
        left -= 1
        last = listing.recalled.ends
        outcome = recalled_entry(listing)
        if listing.stuck:
            return
        if outcome != TAKEN and outcome != SKIPPED:
            listing.outcome = outcome
            return
        if last:
            listing.outcome = END
            return


cdef void recall_turn(job_t *job) noexcept nogil:
    cdef listing_t *listing = <listing_t *>job.data
    cdef listing_t before = listing[0]
    cdef int may = access_to(listing.directory_fd, True)
    if may >= 0 and may & ACCESS3_READ and may & ACCESS3_LOOKUP:
        recall_entries(listing)
        if not has_changed(listing):
            return
        listing[0] = before
        listing.still = False
    listing.refused = True
    listing.outcome = MORE
