"""Listing directories on native threads (contract: ``listing.pyi``).

Owns :class:`Listing`, which the encoders of NFS's versions derive from, and :class:`Entries`, for Python.

Operation. A listing is made in turns of at most TURN entries (:mod:`nfsd.vfs.dirents`). A turn runs without the
interpreter's lock, on a worker or, a short one of a directory in memory, on the loop. It reads names in large blocks, looks
at each file as the caller, no more closely than was asked for, signs its handle, and has the encoder put the entry where
it leaves from.

What a turn cannot do ends it: the entry is on another mount, or is one whose attributes only Python knows. It waits as
``entry`` until the loop has completed it, and the next turn goes on behind it.

The change attribute depends on what is remembered of the file (:mod:`nfsd.vfs.change`), which is the loop's. Its places
are marked, and filled in after the turn.
"""

import os
from contextlib import suppress

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItem
from cpython.long cimport PyLong_AsVoidPtr
from cpython.object cimport PyObject
from libc.errno cimport EINVAL
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from nfsd.vfs.attributes cimport attributes_in, statx_timestamp, status_in
from nfsd.vfs.change cimport OFFSET, SETTLE, ChangeRecord
from nfsd.vfs.dirents cimport COOKIE_SHIFT, DIRENT, DIRENTS, done_with_entry, recall_turn, take_turn, to_cookie, to_offset
from nfsd.vfs.kernel cimport CLOCK_REALTIME, clock_gettime, timespec
from nfsd.vfs.executor cimport Chain
from nfsd.vfs.handles cimport FS_ID, HandleCodec, sign_handle
from nfsd.vfs.recent_listing cimport RecentListing, noted_t, recent_t
from nfsd.vfs.records cimport Inode, Node
from rpcrdma.octets cimport store64

from nfsd.vfs.types import DirectoryEntry

cdef enum:
    AHEAD = 4096                # octets of what has been read in vain that are kept
    FIRST = 16384               # octets of listing, as of one short turn, before memory of the caller's is asked for
    KEPT = 65536                # octets of entries on their way to Python
    NOTED = 81920               # octets of those of a turn that are to be remembered

cdef uint64_t LAST_OFFSET = 0x7FFFFFFFFFFFFFFF


def cookie_of(offset):
    return to_cookie(<uint64_t>(offset & 0xFFFFFFFFFFFFFFFF))


def offset_of(cookie):
    if cookie == LAST_OFFSET:
        return cookie
    if not COOKIE_SHIFT <= cookie < 1 << 64:
        raise OSError(EINVAL, os.strerror(EINVAL))
    return cookie - COOKIE_SHIFT


cdef bint settled(statx_timestamp *ctime) noexcept:
    """Whether every change from now on gives another ctime, whatever the grain of the clock."""
    cdef timespec clock
    clock_gettime(CLOCK_REALTIME, &clock)
    return (clock.tv_sec - ctime.seconds) * 1000000000 + clock.tv_nsec - <int64_t>ctime.nanoseconds > SETTLE


# -- what Python sees ---------------------------------------------------------------------------------------------
@cython.no_gc_clear
cdef class Listing:
    # no_gc_clear: __dealloc__ must still see whose memory it is, or it would free the caller's.

    def __cinit__(self, *_, **__):
        memset(&self.state, 0, sizeof(self.state))
        self.state.fd = -1
        self.state.octets_each = DIRENT
        self.state.dirents = <uint8_t *>malloc(DIRENTS)
        self.state.start = self.state.at = <uint8_t *>malloc(FIRST)
        if self.state.dirents == NULL or self.state.start == NULL:
            raise MemoryError
        self.state.end = self.state.start + FIRST

    def __dealloc__(self):
        free(self.state.dirents)
        if self.memory is None:
            free(self.state.start)
        free(self.state.marks)
        free(self.state.found)
        free(self.state.noted.start)

    cdef int want_changes(self) except -1:
        """Change attributes will be marked."""
        self.state.marks = <mark_t *>malloc(TURN * sizeof(mark_t))
        if self.state.marks == NULL:
            raise MemoryError
        return 0

    def begin(self, Node directory not None, status, HandleCodec codec not None, int proc_fd, *, bint rooted):
        cdef statx_t *here = status_in(status)
        cdef listing_t *listing = &self.state
        cdef bytes fs_id
        mount = self.mount = directory.mount
        fs_id = mount.fs_id
        self.codec = codec
        self.prefix = mount.key_prefix
        listing.key = &codec.key
        listing.proc_fd = proc_fd
        listing.directory_fd = directory.fd
        listing.rooted = rooted
        listing.root_fileid = here.ino
        listing.mnt_id = here.mnt_id
        listing.device_major, listing.device_minor = mount.device
        listing.fsid[0], listing.fsid[1] = mount.fsid
        listing.has_mounted_on = mount.mounted_on_fileid is not None
        if listing.has_mounted_on:
            listing.mounted_on_fileid = mount.mounted_on_fileid
        listing.export_id = mount.export.id
        memcpy(listing.fs_id, <const uint8_t *>fs_id, FS_ID)
        listing.naming = mount.naming
        # Of other file systems nothing is known about how ctime and names go together.
        listing.ctime = here.ctime
        listing.still = listing.want_handle and (mount.inline or mount.caching) and settled(&here.ctime)
        if mount.by_place and listing.found == NULL:
            listing.found = <found_t *>malloc(TURN * sizeof(found_t))
            if listing.found == NULL:
                raise MemoryError

    def go_on(self, int fd, cookie, position, bytes ahead=b""):
        if len(ahead) > DIRENTS:
            raise ValueError("more than is ever read")
        memcpy(self.state.dirents, PyBytes_AS_STRING(ahead), len(ahead))
        self.state.dirents_at, self.state.dirents_end = 0, len(ahead)
        self.state.fd = fd
        self.state.cookie = cookie
        self.state.seek = position is not None
        self.state.position = 0 if position is None else <int64_t><uint64_t>position

    def ahead(self):
        cdef Py_ssize_t size = self.state.dirents_end - self.state.dirents_at
        if size > AHEAD:
            return None
        return PyBytes_FromStringAndSize(<char *>self.state.dirents + self.state.dirents_at, size)

    def offer(self, bytes name not None, cookie, uint64_t fileid, int kind, bytes key not None, status, int error=0):
        cdef listing_t *listing = &self.state
        cdef entry_t *entry = &listing.entry
        memset(entry, 0, sizeof(entry_t))
        listing.dirents_at = listing.dirents_end = 0
        entry.name, entry.name_size = <const uint8_t *>name, <uint32_t>len(name)
        entry.fileid, entry.cookie, entry.error = fileid, cookie, error
        listing.across = False
        if listing.skip_dots and (name == b"." or name == b".."):
            listing.outcome = SKIPPED
        else:
            if status is not None and listing.want_status:
                self.fill(kind, key, status)
            listing.outcome = listing.encode(listing, entry)
        if listing.outcome == TAKEN:
            listing.taken += 1
        if listing.outcome == TAKEN or listing.outcome == SKIPPED:
            listing.cookie = entry.cookie
            listing.outcome = MORE
        return listing.outcome

    def fill(self, int kind, bytes key not None, status):
        """Attributes and handle of the entry that is offered."""
        cdef listing_t *listing = &self.state
        cdef entry_t *entry = &listing.entry
        listing.status = status_in(status)[0]
        entry.status = &listing.status
        entry.fsid[0], entry.fsid[1] = listing.fsid[0], listing.fsid[1]
        entry.mounted_on_fileid = listing.status.ino
        if listing.want_handle:
            entry.handle_size = sign_handle(
                listing.key, listing.export_id, listing.fs_id, kind, <const uint8_t *>key, <uint32_t>len(key),
                entry.handle
            )
            if entry.handle_size == 0:
                entry.status = NULL
                return
            entry.key_size = 1 + <uint32_t>len(key)
            entry.key[0] = <uint8_t>kind
            memcpy(entry.key + 1, <const uint8_t *>key, len(key))

    def recall(self, RecentListing recent not None, NodeTable nodes not None):
        self.recent, self.nodes = recent, nodes

    @property
    def recalls(self):
        return not self.state.stuck and self.next_recent() != NULL

    cdef recent_t *next_recent(self) noexcept:
        """The entry that comes next, if it is remembered."""
        if self.recent is None or self.state.refused:
            return NULL
        return self.recent.behind(self.state.cookie)

    def turn(self, credential, unsigned int budget, *, bint may_look=True):
        cdef Chain chain = Chain(credential)
        cdef listing_t *listing = &self.state
        listing.budget = min(budget, <unsigned int>TURN)
        listing.may_look = may_look
        listing.recalled = self.next_recent()
        self.taken_before = listing.taken
        listing.noted.at = NULL
        if listing.recalled != NULL:
            self.strayed = True
        else:
            listing.stuck = False
            if self.strayed:
                self.strayed = False
                listing.dirents_at = listing.dirents_end = 0
                listing.seek, listing.position = True, to_offset(listing.cookie)
            if self.recent is not None and listing.still and not listing.refused and self.recent.grows():
                self.remember()
        chain.job.run = take_turn if listing.recalled == NULL else recall_turn
        chain.job.data = listing
        chain.keep.append(self)
        return chain

    cdef int remember(self) except -1:
        """The turn is to note what it finds."""
        cdef noted_t *noted = &self.state.noted
        if noted.start == NULL:
            noted.start = <uint8_t *>malloc(NOTED)
            if noted.start == NULL:
                raise MemoryError
            noted.end = noted.start + NOTED
        noted.at = noted.start
        self.noted_behind = self.state.cookie
        self.nodes_before, self.heard_before = self.nodes.added, self.recent.heard
        return 0

    def settle(self, NodeTable nodes not None):
        cdef listing_t *listing = &self.state
        cdef bint noted = listing.noted.at != NULL and listing.outcome != ERROR
        self.drain(nodes)
        if self.strayed:
            self.recent.recalled += listing.taken - self.taken_before
        # News that came meanwhile may be of a file that the turn had looked at before.
        if noted and self.recent.grows() and self.recent.heard == self.heard_before:
            with suppress(MemoryError):  # what has been added by then is good
                self.recent.add(
                    &listing.noted, self.noted_behind, listing.outcome == END, self.prefix, nodes, self.nodes_before
                )
        return listing.outcome


    cdef int drain(self, NodeTable nodes) except -1:
        """Fill in the change attributes: as every look at a file does it, but of what is only listed nothing need be
        remembered where the value will be the same the next time."""
        cdef listing_t *listing = &self.state
        cdef timespec clock
        cdef uint64_t now = 0, value
        cdef bint fine = self.mount.fine
        cdef Py_ssize_t common = len(self.prefix)
        cdef mark_t *noted
        cdef PyObject *known
        cdef unsigned int number
        cdef bytes key
        cdef Inode inode
        if listing.marked == 0:
            return 0
        if not fine:
            clock_gettime(CLOCK_REALTIME, &clock)
            now = <uint64_t>clock.tv_sec * 1000000000 + <uint64_t>clock.tv_nsec
        for number in range(listing.marked):
            noted = &listing.marks[number]
            if noted.counted:
                store64(listing.start + noted.at, <uint64_t>noted.ctime)
                continue
            key = PyBytes_FromStringAndSize(NULL, common + noted.key_size)
            memcpy(PyBytes_AS_STRING(key), PyBytes_AS_STRING(self.prefix), common)
            memcpy(PyBytes_AS_STRING(key) + common, noted.key, noted.key_size)
            known = PyDict_GetItem(nodes.inodes, key)
            value = <uint64_t>noted.ctime
            if known != NULL:
                inode = <Inode>PyLong_AsVoidPtr(<object>known)
                value = inode.change.look(value, now, fine, False)
            elif not fine:
                if <int64_t>(now - value) > SETTLE:
                    value += OFFSET
                else:
                    inode = nodes.inode(key)
                    value = inode.change.look(value, now, fine, False)
            store64(listing.start + noted.at, value)
        listing.marked = 0
        return 0

    def found(self):
        cdef listing_t *listing = &self.state
        cdef found_t *noted
        cdef unsigned int number
        cdef list files = []
        for number in range(listing.found_count):
            noted = &listing.found[number]
            files.append(((<char *>noted.handle)[:noted.handle_size], (<char *>noted.name)[:noted.name_size]))
        listing.found_count = 0
        return files

    def pending(self, NodeTable nodes not None):
        return self.entry_of(&self.state.entry, nodes)

    cdef object entry_of(self, entry_t *entry, NodeTable nodes):
        """An entry as Python knows it."""
        cdef Inode inode
        handle = attributes = None
        if entry.handle_size and not self.state.across:
            handle = (<char *>entry.handle)[:entry.handle_size]
            key = self.prefix + (<char *>entry.key)[:entry.key_size]
            inode = nodes.known_inode(key)
            if inode is None and not self.mount.fine:
                inode = nodes.inode(key)
            # Where ctime alone is the change attribute there is nothing to remember of a file only listed.
            record = ChangeRecord() if inode is None else inode.change
            attributes = attributes_in(entry.status, self.mount, record, False)
        name = (<char *>entry.name)[:entry.name_size]
        return DirectoryEntry(name, entry.fileid, entry.cookie, handle, attributes, entry.error)

    def add(self, bytes octets not None, *, Py_ssize_t name_octets=0):
        cdef listing_t *listing = &self.state
        cdef Py_ssize_t size = len(octets)
        listing.names -= name_octets
        if size > listing.room or (listing.names < 0 and listing.taken):
            return False
        if listing.end - listing.at < size:
            raise BufferError("the listing's memory is too small")
        memcpy(listing.at, PyBytes_AS_STRING(octets), size)
        listing.at += size
        listing.room -= size
        listing.taken += 1
        done_with_entry(listing)
        return True

    def skip(self):
        done_with_entry(&self.state)

    def move(self, memory):
        cdef listing_t *listing = &self.state
        cdef Py_buffer view
        cdef Py_ssize_t used = listing.at - listing.start
        if self.memory is not None:
            raise RuntimeError("the listing has been moved")
        PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
        try:
            if view.len < used:
                raise BufferError("the listing is longer")
            memcpy(view.buf, listing.start, used)
            free(listing.start)
            listing.start = <uint8_t *>view.buf
            listing.at = listing.start + used
            listing.end = listing.start + view.len
            self.memory = memory
        finally:
            PyBuffer_Release(&view)

    def octets(self):
        return PyBytes_FromStringAndSize(<char *>self.state.start, self.state.at - self.state.start)

    @property
    def used(self):
        return self.state.at - self.state.start

    @property
    def fits(self):
        return self.state.end - self.state.at

    @property
    def taken(self):
        return self.state.taken

    @property
    def cookie(self):
        return self.state.cookie

    @property
    def fd(self):
        return self.state.fd

    @property
    def across(self):
        return bool(self.state.across)

    @property
    def error(self):
        return self.state.error


# -- entries for Python -------------------------------------------------------------------------------------------
cdef struct record_t:
    entry_t entry
    statx_t status
    bint has_status


cdef outcome_t keep_entry(listing_t *listing, entry_t *entry) noexcept nogil:
    """The entry as it is, its name behind it."""
    cdef record_t *record = <record_t *>listing.at
    cdef size_t size = (sizeof(record_t) + entry.name_size + 7) & ~<size_t>7
    if listing.room <= 0:
        return FULL
    if <size_t>(listing.end - listing.at) < size:
        return GROW
    record.entry = entry[0]
    record.has_status = entry.status != NULL
    if record.has_status:
        record.status = entry.status[0]
    memcpy(listing.at + sizeof(record_t), entry.name, entry.name_size)
    listing.at += size
    listing.room -= 1
    return TAKEN


cdef class Entries(Listing):
    cdef readonly list entries

    def __init__(self, Py_ssize_t limit, *, bint plus):
        self.entries = []
        free(self.state.start)
        self.state.start = self.state.at = <uint8_t *>malloc(KEPT)
        if self.state.start == NULL:
            raise MemoryError
        self.state.end = self.state.start + KEPT
        self.state.encode = keep_entry
        self.state.want_status = self.state.want_handle = plus
        self.state.room = limit
        self.state.octets_each = 1

    cdef int drain(self, NodeTable nodes) except -1:
        cdef listing_t *listing = &self.state
        cdef uint8_t *at = listing.start
        cdef record_t *record
        cdef bint across = listing.across
        listing.across = False  # of those here, none
        while at < listing.at:
            record = <record_t *>at
            record.entry.name = at + sizeof(record_t)
            record.entry.status = &record.status if record.has_status else NULL
            self.entries.append(self.entry_of(&record.entry, nodes))
            at += (sizeof(record_t) + record.entry.name_size + 7) & ~<size_t>7
        listing.at = listing.start
        listing.across = across
        return 0

    def take(self, entry):
        self.entries.append(entry)
        self.state.room -= 1
        self.state.taken += 1
        done_with_entry(&self.state)


OUTCOMES = {"more": MORE, "end": END, "full": FULL, "grow": GROW, "needs": NEEDS, "failed": FAILED, "error": ERROR}
