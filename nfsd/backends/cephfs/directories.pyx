"""Looking names of CephFS up, making files and removing names, in one step outside the interpreter (contract:
``directories.pyi``).

Owns :class:`Directories`, which workers use. For these, what no name can be is refused here as for others in
:mod:`nfsd.backends.cephfs.keys`. Ceph checks permissions, as whom each call is made.
"""

from libc.errno cimport EEXIST, EISDIR, ENAMETOOLONG, ENOENT, ENOMEM, ENOTDIR, EROFS, ESTALE
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, strcmp, strlen

from nfsd.backends.cephfs.api cimport *
from nfsd.backends.cephfs.mounted cimport LIVE, Mounted, fill, find_in, see_as
from nfsd.vfs.identity cimport identity_t

from os import strerror


cdef enum:
    NAME_MAX = 255
    IFMT = 0o170000
    DIRECTORY = 0o040000
    REGULAR = 0o100000

cdef const char *SNAPSHOTS = b".snap"


cdef inline void put_key(key_t *key, const ceph_statx *seen) noexcept nogil:
    key.size = 16
    memcpy(key.octets, &seen.stx_ino, 8)
    memcpy(key.octets + 8, &seen.stx_dev, 8)


cdef int look(const names_t *names, inode_t *inode, statx_t *status) noexcept nogil:
    """0, or the negative error."""
    cdef ceph_statx seen
    cdef int result = see_as(names.mount, inode, &seen, names.server)
    if result == 0:
        fill(status, &seen)
    return result


cdef void look_after(const names_t *names, inode_t *inode, const statx_t *before, statx_t *after) noexcept nogil:
    """What has been done is not to be answered as if it had failed."""
    if look(names, inode, after) != 0:
        after[0] = before[0]


cdef int missing(const names_t *names, inode_t *directory) noexcept nogil:
    """The negative error, where a name does not exist; or does the directory not?"""
    cdef statx_t status
    return -ENOENT if look(names, directory, &status) == 0 and status.nlink != 0 else -ESTALE


cdef int make_name(
    const names_t *names, UserPerm *who, const key_t *directory, const char *name, unsigned int mode, uint64_t device,
    const char *text, key_t *key, statx_t *status, statx_t *before, statx_t *after
) noexcept nogil:
    """A file, or what else ``mode`` tells; a symbolic link, if it has a text. 0 or an errno."""
    cdef inode_t *inode = NULL
    cdef inode_t *made = NULL
    cdef ceph_statx seen
    cdef unsigned int want = CEPH_STATX_ALL_STATS
    cdef int result = find_in(names.mount, <const char *>directory.octets, &inode)
    if result != 0:
        return -result
    result = look(names, inode, before)
    if result != 0:
        pass
    elif text != NULL:
        result = ceph_ll_symlink(names.mount, inode, name, text, &made, &seen, want, 0, who)
    elif mode & IFMT == DIRECTORY:
        result = ceph_ll_mkdir(names.mount, inode, name, mode & 0o7777, &made, &seen, want, 0, who)
    else:
        result = ceph_ll_mknod(names.mount, inode, name, mode, device, &made, &seen, want, 0, who)
    if result == 0:
        ceph_ll_put(names.mount, made)
        put_key(key, &seen)
        fill(status, &seen)
        look_after(names, inode, before, after)
    elif result == -ENOENT:
        result = missing(names, inode)
    ceph_ll_put(names.mount, inode)
    return -result


cdef int remove_found(
    const names_t *names, UserPerm *who, inode_t *inode, const char *name, bint a_directory, inode_t *victim,
    statx_t *status, statx_t *before, statx_t *after
) noexcept nogil:
    """A name that leads to ``victim``, as ``status`` tells. A file that has lost its last name may be gone at once."""
    cdef int result
    if a_directory != ((status.mode & IFMT) == DIRECTORY):
        return -ENOTDIR if a_directory else -EISDIR
    result = look(names, inode, before)
    if result == 0:
        if a_directory:
            result = ceph_ll_rmdir(names.mount, inode, name, who)
        else:
            result = ceph_ll_unlink(names.mount, inode, name, who)
    if result == 0:
        look_after(names, inode, before, after)
        if a_directory or status.nlink <= 1 or look(names, victim, status) != 0:
            status.nlink = 0
    return result


cdef int remove_name(
    const names_t *names, UserPerm *who, const key_t *directory, const char *name, bint a_directory, key_t *key,
    statx_t *status, statx_t *before, statx_t *after
) noexcept nogil:
    """0 or an errno."""
    cdef inode_t *inode = NULL
    cdef inode_t *victim = NULL
    cdef ceph_statx seen
    cdef int result = find_in(names.mount, <const char *>directory.octets, &inode)
    if result != 0:
        return -result
    result = ceph_ll_lookup(names.mount, inode, name, &victim, &seen, CEPH_STATX_ALL_STATS, 0, who)
    if result == 0:
        put_key(key, &seen)
        fill(status, &seen)
        result = remove_found(names, who, inode, name, a_directory, victim, status, before, after)
        ceph_ll_put(names.mount, victim)
    if result == -ENOENT:
        result = missing(names, inode)
    ceph_ll_put(names.mount, inode)
    return -result


# -- what workers do -----------------------------------------------------------------------------------------------
cdef int unchangeable(const key_t *directory, const char *name, int of_snapshots) noexcept nogil:
    """0, or why no such name can be made or removed there; ``of_snapshots``: the ``.snap`` that every directory has."""
    cdef uint64_t snapshot
    memcpy(&snapshot, directory.octets + 8, 8)
    if strlen(name) > NAME_MAX:
        return ENAMETOOLONG
    if snapshot != LIVE:
        return EROFS
    return of_snapshots if strcmp(name, SNAPSHOTS) == 0 else 0


cdef inline UserPerm *user_of(identity_t *caller) noexcept nogil:
    return ceph_userperm_new(caller.uid, caller.gid, caller.ngroups, caller.groups)


cdef int lookup_as(
    stored_names_t *names, identity_t *caller, const key_t *directory, const char *name, key_t *key, statx_t *status,
    statx_t *after
) noexcept nogil:
    cdef names_t *here = <names_t *>names
    cdef inode_t *inode = NULL
    cdef inode_t *found = NULL
    cdef ceph_statx seen
    cdef UserPerm *who
    cdef int result
    after.mask = 0
    if strlen(name) > NAME_MAX:
        return ENAMETOOLONG
    result = find_in(here.mount, <const char *>directory.octets, &inode)
    if result != 0:
        return -result
    who = user_of(caller)
    if who == NULL:
        result = -ENOMEM
    else:
        result = ceph_ll_lookup(here.mount, inode, name, &found, &seen, CEPH_STATX_ALL_STATS, 0, who)
        ceph_userperm_destroy(who)
    if result == 0:
        ceph_ll_put(here.mount, found)
        put_key(key, &seen)
        fill(status, &seen)
    if look(here, inode, after) != 0:
        after.mask = 0
    if result == -ENOENT and (after.mask == 0 or after.nlink == 0):
        result = -ESTALE  # it is the directory that does not exist
    ceph_ll_put(here.mount, inode)
    return -result


cdef int make_as(
    stored_names_t *names, identity_t *caller, const key_t *directory, const char *name, uint32_t mode, key_t *key,
    statx_t *status, statx_t *before, statx_t *after
) noexcept nogil:
    cdef int error = unchangeable(directory, name, EEXIST)
    cdef UserPerm *who = NULL if error else user_of(caller)
    if who != NULL:
        error = make_name(
            <names_t *>names, who, directory, name, REGULAR | mode, 0, NULL, key, status, before, after
        )
        ceph_userperm_destroy(who)
    elif error == 0:
        error = ENOMEM
    return error


cdef int remove_as(
    stored_names_t *names, identity_t *caller, const key_t *directory, const char *name, bint a_directory, key_t *key,
    statx_t *status, statx_t *before, statx_t *after
) noexcept nogil:
    cdef int error = unchangeable(directory, name, EROFS)
    cdef UserPerm *who = NULL if error else user_of(caller)
    if who != NULL:
        error = remove_name(<names_t *>names, who, directory, name, a_directory, key, status, before, after)
        ceph_userperm_destroy(who)
    elif error == 0:
        error = ENOMEM
    return error


cdef class Directories(StoredDirectories):
    def __cinit__(self, Mounted mounted not None):
        self.mounted = mounted
        self.body = &self.names.body
        self.body.lookup, self.body.make, self.body.remove = lookup_as, make_as, remove_as

    cdef int hold(self) except -1:
        if self.mounted.mount == NULL:
            raise OSError(ESTALE, strerror(ESTALE))  # it is exported no more
        self.mounted.users += 1
        return 0

    cdef int let_go(self) except -1:
        return self.mounted.left()
