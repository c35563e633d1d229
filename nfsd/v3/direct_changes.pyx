"""NFSv3's native changes of names: CREATE, MKDIR, SYMLINK, REMOVE, RMDIR, RENAME and LINK (RFC 1813 sections 3.3.8 to
3.3.10 and 3.3.12 to 3.3.15).

Owns :class:`Nfs3Changes`; imports what NFSv3's native procedures share and the file service's direct operations.
Answers are octet for octet those of :mod:`nfsd.v3.names` and :mod:`nfsd.v3.creation`, which do whatever is declined here.

Each procedure looks at its arguments, has the change prepared, or finds the one that has been brought, has it carried
through (:meth:`Nfs3Changes.carry`), and writes the reply.
"""

from libc.errno cimport EEXIST
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memchr

from cpython.bytes cimport PyBytes_FromStringAndSize

from nfsd.v3.direct_names cimport NAME3_MAX, is_component, status_in, walked
from nfsd.v3.fattr cimport store_fattr, store_wcc
from nfsd.v3.sattr cimport load_sattr
from nfsd.vfs.direct cimport Standing, changes_t, no, no_changes
from nfsd.vfs.name_changes cimport MAKE_DIRECTORY, MAKE_FILE, REMOVE_DIRECTORY, REMOVE_NAME, NameChange
from nfsd.vfs.records cimport Node
from nfsd.vfs.transfers cimport errno_of
from nfsd.wire.nfs3 cimport (
    CREATE3resok_MAX, EXCLUSIVE, GUARDED, NFS3ERR_ACCES, NFS3ERR_EXIST, NFS3ERR_INVAL, NFS3ERR_ISDIR, NFS3ERR_NOTDIR,
    NFS3ERR_ROFS, NFS3ERR_XDEV, NFS3_OK, NFSPROC3_CREATE, NFSPROC3_LINK, NFSPROC3_MKDIR, NFSPROC3_REMOVE,
    NFSPROC3_RENAME, NFSPROC3_RMDIR, NFSPROC3_SYMLINK, load_nfs_fh3, nfs_fh3_t,
)
from rpcrdma.declined cimport FAILED, NODE, SIZE
from rpcrdma.octets cimport load32, load_opaque, opaque_t, store32, store_opaque
from rpcrdma.place cimport ANSWERED, DECLINED, Place
from rpcrdma.rpc.direct cimport Caller
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.vfs.types import FileType

cdef enum:
    DONE = 3                    # what is left is the reply
    ROOM = 4 + CREATE3resok_MAX # for any of these replies
    TEXT_MAX = 4096             # what is longer is too long for every file system

cdef object DIR = FileType.DIR


cdef inline NameChange begun(Work brought):
    """The change that a call has waited for, whatever it has waited for since; None: it has not begun."""
    while brought is not None and not isinstance(brought, NameChange):
        brought = brought.earlier
    return <NameChange>brought


cdef inline bint is_dots(opaque_t *name) noexcept nogil:
    """``.`` or ``..``"""
    return 1 <= name.length <= 2 and name.octets[0] == c"." and name.octets[name.length - 1] == c"."


cdef uint32_t renamed(opaque_t *old, opaque_t *new) noexcept:
    """NFS3_OK, or what is wrong with the names of a rename (section 3.3.14, IMPLEMENTATION)."""
    if not is_component(old) or not is_component(new):
        return NFS3ERR_ACCES
    return NFS3ERR_INVAL if is_dots(old) or is_dots(new) else NFS3_OK


cdef class Nfs3Changes(Nfs3Names):
    # -- what all have in common -----------------------------------------------------------------------------------
    cdef uint32_t new_name(self, opaque_t *name) noexcept:
        """NFS3_OK, or what is wrong with a name to be made (:func:`nfsd.v3.convert.new_component`)."""
        if is_dots(name):
            return NFS3ERR_EXIST
        return NFS3_OK if is_component(name) else NFS3ERR_ACCES

    cdef uint32_t changeable(self, Node directory) noexcept:
        """NFS3_OK, or why no name in it can be changed."""
        if directory.type is not DIR:
            return NFS3ERR_NOTDIR
        return NFS3ERR_ROFS if directory.export.read_only else NFS3_OK

    cdef int unprepared(self, Node directory, Standing standing, Work brought) except -1:
        """What becomes of a call whose change could not be prepared: it waits for what that needs, once."""
        if self.files.needs is None or brought is not None:
            return DECLINED
        return self.waits(self.files.needs, None, directory, standing)

    cdef int carry(
        self, uint32_t procedure, NameChange change, Work brought, Standing standing, Node node, Node other, Place place
    ) except -1:
        """Carry a change through. DONE: it is done and, on a disk, on stable storage; else the outcome of the call for
        now. ``brought``: what the call has waited for, None at first; ``node``, ``other``: as for :meth:`fail`."""
        cdef Node directory = change.directory
        if begun(brought) is None and not directory.inline:
            return self.waits(change, brought, node, standing)
        if begun(brought) is None or brought is change:
            if not self.files.settled(change):
                if procedure == NFSPROC3_CREATE and change.data.error == EEXIST:
                    return no(self.files, FAILED)  # it depends on what is there
                return self.refused(procedure, change.data.error, node, other, place)
            if directory.inline or directory.export.asynchronous:
                return DONE
            return self.waits(self.files.to_settle(change), change, node, standing)
        if errno_of(<Errand?>brought):
            return self.fail(procedure, status_in(errno_of(<Errand>brought)), node, other, place)
        return DONE

    cdef uint8_t *store_around(self, uint8_t *at, NameChange change) except NULL:
        """The wcc_data of the directory of the name."""
        return store_wcc(
            at, &change.data.before, &change.data.after, self.fsid_in(change.directory, &change.data.after)
        )

    cdef int made(self, NameChange change, Place place) except -1:
        """CREATE3resok, MKDIR3resok and SYMLINK3resok, which are alike."""
        cdef Node node = change.made
        cdef bytes handle = node.handle
        place.at = store_opaque(store32(store32(place.at, NFS3_OK), 1), handle, len(handle))
        place.at = store_fattr(store32(place.at, 1), &change.data.status, self.fsid_in(node, &change.data.status))
        place.at = self.store_around(place.at, change)
        return ANSWERED

    # -- files made ------------------------------------------------------------------------------------------------
    cdef int create(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef const uint8_t *end = arguments + size
        cdef opaque_t name
        cdef changes_t changes
        cdef int64_t length = -1
        cdef uint32_t how, wrong = NFS3_OK
        cdef const uint8_t *at = load_opaque(arguments, end, NAME3_MAX, &name)
        if at == NULL or end - at < 4:
            return DECLINED
        how = load32(at)
        if how == EXCLUSIVE:
            if end - at != 12:
                return DECLINED
            no_changes(&changes)
            # The verifier (nfsd.vfs.creation).
            changes.times[0].seconds = load32(at + 4) & 0x7FFFFFFF
            changes.times[1].seconds = load32(at + 8) & 0x7FFFFFFF
            changes.times[0].nanoseconds = changes.times[1].nanoseconds = 0
        elif how > GUARDED or load_sattr(at + 4, end, &changes, &length, &wrong) != end:
            return DECLINED
        return self.make(
            NFSPROC3_CREATE, standing, directory, &name, &changes, length, wrong, place, brought, how == GUARDED
        )

    cdef int mkdir(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef const uint8_t *end = arguments + size
        cdef opaque_t name
        cdef changes_t changes
        cdef int64_t length = -1
        cdef uint32_t wrong = NFS3_OK
        cdef const uint8_t *at = load_opaque(arguments, end, NAME3_MAX, &name)
        if at == NULL or load_sattr(at, end, &changes, &length, &wrong) != end:
            return DECLINED
        return self.make(NFSPROC3_MKDIR, standing, directory, &name, &changes, length, wrong, place, brought, True)

    cdef int make(
        self, uint32_t procedure, Standing standing, Node directory, opaque_t *name, changes_t *changes, int64_t length,
        uint32_t wrong, Place place, Work brought, bint guarded
    ) except -1:
        """CREATE and MKDIR. ``wrong``: what is wrong with the attributes; ``guarded``: not of a name that is taken."""
        cdef NameChange change = begun(brought)
        cdef uint32_t status = NFS3ERR_ROFS if standing.read_only else self.new_name(name) or wrong
        cdef int outcome
        if place.end - place.at < ROOM:
            return no(self.files, SIZE)
        if change is None:
            status = status or self.changeable(directory)
            if status != NFS3_OK:
                return self.fail(procedure, status, directory, None, place)
            change = self.files.to_make(
                MAKE_FILE if procedure == NFSPROC3_CREATE else MAKE_DIRECTORY, standing.credential, directory,
                name.octets, name.length, changes, max(length, 0),
            )
            if change is None:
                return self.unprepared(directory, standing, brought)
        outcome = self.carry(procedure, change, brought, standing, directory, None, place)
        if outcome == DECLINED and guarded and change.data.error == EEXIST:
            return self.fail(procedure, NFS3ERR_EXIST, directory, None, place)
        return self.made(change, place) if outcome == DONE else outcome

    cdef int symlink(
        self, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place, Work brought
    ) except -1:
        cdef const uint8_t *end = arguments + size
        cdef NameChange change = begun(brought)
        cdef opaque_t name, text
        cdef changes_t changes
        cdef int64_t length
        cdef uint32_t wrong, status
        cdef int outcome
        cdef const uint8_t *at = load_opaque(arguments, end, NAME3_MAX, &name)
        if at != NULL:
            at = load_sattr(at, end, &changes, &length, &wrong)
        if at == NULL or load_opaque(at, end, NAME3_MAX, &text) != end:
            return DECLINED
        if place.end - place.at < ROOM:
            return no(self.files, SIZE)
        if change is None:
            status = NFS3ERR_ROFS if standing.read_only else self.new_name(&name)
            if status == NFS3_OK and (text.length == 0 or memchr(text.octets, 0, text.length) != NULL):
                status = NFS3ERR_INVAL  # no local file system can keep it
            status = status or wrong or self.changeable(directory)
            if status != NFS3_OK:
                return self.fail(NFSPROC3_SYMLINK, status, directory, None, place)
            change = self.files.to_symlink(
                standing.credential, directory, name.octets, name.length,
                PyBytes_FromStringAndSize(<char *>text.octets, min(text.length, <uint32_t>TEXT_MAX)), &changes,
            )
            if change is None:
                return self.unprepared(directory, standing, brought)
        outcome = self.carry(NFSPROC3_SYMLINK, change, brought, standing, directory, None, place)
        return self.made(change, place) if outcome == DONE else outcome

    # -- names removed and moved -----------------------------------------------------------------------------------
    cdef int remove(
        self, uint32_t procedure, Standing standing, Node directory, const uint8_t *arguments, size_t size, Place place,
        Work brought
    ) except -1:
        """REMOVE and RMDIR."""
        cdef NameChange change = begun(brought)
        cdef opaque_t name
        cdef uint32_t status
        cdef int outcome
        if load_opaque(arguments, arguments + size, NAME3_MAX, &name) != arguments + size:
            return DECLINED
        if place.end - place.at < ROOM:
            return no(self.files, SIZE)
        if change is None:
            status = NFS3ERR_ROFS if standing.read_only else NFS3_OK if is_component(&name) else NFS3ERR_ACCES
            if status == NFS3_OK and is_dots(&name):
                if procedure == NFSPROC3_REMOVE:
                    status = NFS3ERR_ISDIR
                else:  # section 3.3.13, IMPLEMENTATION
                    status = NFS3ERR_INVAL if name.length == 1 else NFS3ERR_EXIST
            status = status or self.changeable(directory)
            if status != NFS3_OK:
                return self.fail(procedure, status, directory, None, place)
            self.files.walked = walked(brought)
            change = self.files.to_remove(
                REMOVE_NAME if procedure == NFSPROC3_REMOVE else REMOVE_DIRECTORY, standing.credential, directory,
                name.octets, name.length,
            )
            if change is None:
                return self.unprepared(directory, standing, brought)
        outcome = self.carry(procedure, change, brought, standing, directory, None, place)
        if outcome == DONE:
            place.at = self.store_around(store32(place.at, NFS3_OK), change)
            return ANSWERED
        return outcome

    cdef Node other_file(self, Caller caller, nfs_fh3_t *handle, bint *read_only):
        """The second file of a call, and whether the caller may only read it; None declines."""
        cdef Node node
        cdef Standing standing
        self.files.why = NODE
        if handle.data.length == 0:
            return None
        node = self.files.find(handle.data.octets, handle.data.length)
        if node is None:
            return None
        standing = self.files.standing(caller, node)
        if standing is None:
            return None
        read_only[0] = standing.read_only
        return node

    cdef int rename(
        self, Caller caller, Standing standing, Node source, const uint8_t *arguments, size_t size, Place place,
        Work brought
    ) except -1:
        cdef const uint8_t *end = arguments + size
        cdef NameChange change = begun(brought)
        cdef opaque_t old, new
        cdef nfs_fh3_t handle
        cdef bint read_only = False
        cdef Node target
        cdef uint32_t status
        cdef int outcome
        cdef const uint8_t *at = load_opaque(arguments, end, NAME3_MAX, &old)
        if at != NULL:
            at = load_nfs_fh3(at, end, &handle)
        if at == NULL or load_opaque(at, end, NAME3_MAX, &new) != end:
            return DECLINED
        if place.end - place.at < ROOM:
            return no(self.files, SIZE)
        if change is None:
            if standing.read_only:
                return self.fail(NFSPROC3_RENAME, NFS3ERR_ROFS, source, None, place)
            target = self.other_file(caller, &handle, &read_only)
            if target is None:
                return DECLINED
            status = NFS3ERR_ROFS if read_only else renamed(&old, &new)
            if status == NFS3_OK and source.export.id != target.export.id:
                status = NFS3ERR_XDEV
            status = status or self.changeable(source) or self.changeable(target)
            if status == NFS3_OK and source.mount is not target.mount:
                status = NFS3ERR_XDEV
            if status != NFS3_OK:
                return self.fail(NFSPROC3_RENAME, status, source, target, place)
            self.files.walked = walked(brought)
            change = self.files.to_rename(
                standing.credential, source, old.octets, old.length, target, new.octets, new.length
            )
            if change is None:
                return self.unprepared(source, standing, brought)
        target = change.directory
        outcome = self.carry(NFSPROC3_RENAME, change, brought, standing, source, target, place)
        if outcome != DONE:
            return outcome
        place.at = store32(place.at, NFS3_OK)
        if change.data.across:
            place.at = store_wcc(
                place.at, &change.data.old_before, &change.data.old_after, self.fsid_in(source, &change.data.old_after)
            )
        else:
            place.at = self.store_around(place.at, change)
        place.at = self.store_around(place.at, change)
        return ANSWERED

    cdef int link(
        self, Caller caller, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place,
        Work brought
    ) except -1:
        cdef const uint8_t *end = arguments + size
        cdef NameChange change = begun(brought)
        cdef opaque_t name
        cdef nfs_fh3_t handle
        cdef bint read_only = False
        cdef Node directory
        cdef uint32_t status
        cdef int outcome
        cdef const uint8_t *at = load_nfs_fh3(arguments, end, &handle)
        if at == NULL or load_opaque(at, end, NAME3_MAX, &name) != end:
            return DECLINED
        if place.end - place.at < ROOM:
            return no(self.files, SIZE)
        if change is None:
            if standing.read_only:
                return self.fail(NFSPROC3_LINK, NFS3ERR_ROFS, node, None, place)
            directory = self.other_file(caller, &handle, &read_only)
            if directory is None:
                return DECLINED
            status = NFS3ERR_ROFS if read_only else self.new_name(&name)
            if status == NFS3_OK and node.export.id != directory.export.id:
                status = NFS3ERR_XDEV
            status = status or self.changeable(directory)
            if status == NFS3_OK and node.type is DIR:
                status = NFS3ERR_ISDIR
            if status == NFS3_OK and node.mount is not directory.mount:
                status = NFS3ERR_XDEV
            if status != NFS3_OK:
                return self.fail(NFSPROC3_LINK, status, node, directory, place)
            change = self.files.to_link(standing.credential, node, directory, name.octets, name.length)
            if change is None:
                return self.unprepared(node, standing, brought)
        directory = change.directory
        outcome = self.carry(NFSPROC3_LINK, change, brought, standing, node, directory, place)
        if outcome != DONE:
            return outcome
        place.at = store_fattr(store32(store32(place.at, NFS3_OK), 1), &change.data.status, self.fsid_in(node, &change.data.status))
        place.at = self.store_around(place.at, change)
        return ANSWERED
