# distutils: extra_compile_args = -O2
"""NFSv3's native changes of names: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK (RFC 1813 sections 3.3.8
to 3.3.15).

Owns :class:`Nfs3Changes`; imports what NFSv3's native procedures share and the file service's native operations.

Each procedure looks at its arguments, has the change prepared, or finds the one that has been brought, has it carried
through (:meth:`Nfs3Changes.carry`), and writes the reply. What such a change cannot do (GENERAL) is an errand's
(:mod:`nfsd.v3.errands`), with whose result the reply is written (:meth:`Nfs3Changes.carried`). Nothing is declined but
malformed calls.

A creator that names no mode gets mode 0, as from Linux's server: the client sets the mode afterwards (it must after an
EXCLUSIVE CREATE, which carries none), and until then only the owner may touch the file.
"""

from libc.errno cimport EEXIST
from libc.stdint cimport int64_t, uint8_t, uint32_t

from cpython.bytes cimport PyBytes_FromStringAndSize

from nfsd.v3.names cimport AGAIN, DONE, GENERAL, is_component, octets_of, status_in, walked
from nfsd.v3.name_arguments cimport load_name_arguments, name_arguments_t
from nfsd.v3.needs cimport OTHER, RECALLED
from nfsd.vfs.native_files cimport NO_ID, UTIME_NOW, UTIME_OMIT, Standing, changes_t, no, when_t
from nfsd.vfs.name_changes cimport MAKE_DIRECTORY, MAKE_FILE, REMOVE_DIRECTORY, REMOVE_NAME, NameChange
from nfsd.vfs.records cimport Node
from nfsd.vfs.transfers cimport errno_of
from nfsd.wire.nfs3 cimport (
    CREATE3resok_MAX, EXCLUSIVE, GUARDED, NFS3ERR_ACCES, NFS3ERR_EXIST, NFS3ERR_INVAL, NFS3ERR_ISDIR, NFS3ERR_JUKEBOX, NFS3ERR_NOTDIR, NFS3ERR_ROFS, NFS3ERR_XDEV, NFS3_OK,
    NFSPROC3_CREATE, NFSPROC3_LINK, NFSPROC3_LOOKUP, NFSPROC3_MKDIR, NFSPROC3_MKNOD, NFSPROC3_REMOVE, NFSPROC3_RENAME,
    NFSPROC3_RMDIR, NFSPROC3_SYMLINK,
)
from rpcrdma.declined cimport NODE, RECALL, SHAPE, SIZE
from rpcrdma.octets cimport opaque_t, store32, store_opaque
from rpcrdma.place cimport ANSWERED, Place
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.vfs.types import FileType, SetAttributes, SetTo, Time

cdef enum:
    TAKEN = 6                   # of a creation: the name is taken, and it depends on what is there
    ROOM = 4 + CREATE3resok_MAX # for any of these replies
    TEXT_MAX = 4096             # what is longer is too long for every file system
    MAKING = 1 << NFSPROC3_CREATE | 1 << NFSPROC3_MKDIR | 1 << NFSPROC3_SYMLINK | 1 << NFSPROC3_MKNOD

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


cdef object time_in(when_t *when):
    """A time to be set, for the file service."""
    if when.nanoseconds == UTIME_NOW:
        return SetTo.SERVER_TIME
    return None if when.nanoseconds == UTIME_OMIT else Time(when.seconds, when.nanoseconds)


cdef object initial(name_arguments_t *arguments):
    """The attributes of what is to be made, for the file service."""
    cdef changes_t *changes = &arguments.changes
    return SetAttributes(
        mode=max(changes.mode, 0),
        uid=None if changes.uid == NO_ID else changes.uid,
        gid=None if changes.gid == NO_ID else changes.gid,
        size=None if arguments.size < 0 else arguments.size,
        atime=time_in(&changes.times[0]),
        mtime=time_in(&changes.times[1]),
    )


cdef bytes text_of(name_arguments_t *arguments):
    """The text of a symbolic link, or so much of it as is too long."""
    return PyBytes_FromStringAndSize(<char *>arguments.text.octets, min(arguments.text.length, <uint32_t>TEXT_MAX))


cdef class Nfs3Changes(Nfs3Names):
    cdef int run_named(
        self, uint32_t procedure, Standing standing, Node node, const uint8_t *arguments, size_t size, Place place,
        Work brought,
    ) except -1:
        """Carry out a procedure about names, LOOKUP among them, as far as it goes with what has been brought."""
        cdef name_arguments_t loaded
        if not load_name_arguments(procedure, arguments, arguments + size, place, &loaded):
            return no(self.files, SHAPE)
        if place.end - place.at < ROOM:
            return no(self.files, SIZE)
        self.files.walked = walked(brought)
        if procedure == NFSPROC3_LOOKUP:
            return self.lookup(standing, node, &loaded, place, brought)
        if (MAKING >> procedure) & 1:
            return self.make(procedure, standing, node, &loaded, place, brought)
        if procedure == NFSPROC3_RENAME:
            return self.rename(standing, node, &loaded, place, brought)
        if procedure == NFSPROC3_LINK:
            return self.link(standing, node, &loaded, place, brought)
        return self.remove(procedure, standing, node, &loaded, place, brought)

    # -- what all have in common -----------------------------------------------------------------------------------
    cdef uint32_t new_name(self, opaque_t *name) noexcept:
        """NFS3_OK, or what is wrong with a name to be made: ``.`` and ``..`` always exist already (section 3.3.9,
        IMPLEMENTATION)."""
        if is_dots(name):
            return NFS3ERR_EXIST
        return NFS3_OK if is_component(name) else NFS3ERR_ACCES

    cdef uint32_t changeable(self, Node directory) noexcept:
        """NFS3_OK, or why no name in it can be changed."""
        if directory.type is not DIR:
            return NFS3ERR_NOTDIR
        return NFS3ERR_ROFS if directory.export.read_only else NFS3_OK

    cdef int unprepared(
        self, uint32_t procedure, Node node, Node other, Standing standing, Place place, Work brought
    ) except -1:
        """What becomes of a call whose change could not be prepared: it waits for what that needs, once, or is an
        errand's. ``node``, ``other``: as for :meth:`fail`."""
        if self.files.why == RECALL:
            if self.have is not None and self.have.hold is not None:
                # Another file has the name now, and is delegated as well. The client is to come again (section 2.6).
                return self.fail(procedure, NFS3ERR_JUKEBOX, node, other, place)
            self.progress(node, standing).other = other
            return self.need(RECALLED, node, standing, brought)
        if self.files.needs is not None and self.files.walked is None:
            return self.waits(self.files.needs, None, node, standing)
        return GENERAL

    cdef int carry(
        self, uint32_t procedure, NameChange change, Work brought, Standing standing, Node node, Node other, Place place
    ) except -1:
        """Carry a change through. DONE: it is done and, on a disk, on stable storage; TAKEN, AGAIN, GENERAL: nothing has
        been done; else the outcome of the call for now. ``brought``: what the call has waited for, None at first;
        ``node``, ``other``: as for :meth:`fail`."""
        cdef Node directory = change.directory
        if begun(brought) is None and not directory.inline:
            return self.waits(change, None, node, standing)
        if begun(brought) is None or brought is change:
            if not self.files.settled(change):
                if procedure == NFSPROC3_CREATE and change.data.error == EEXIST:
                    return TAKEN
                return self.refused(procedure, change.data.error, node, other, place)
            if directory.inline or directory.export.late_names:
                return DONE
            return self.waits(self.files.to_settle(change), change, node, standing)
        if errno_of(<Errand?>brought):
            return self.fail(procedure, status_in(errno_of(<Errand>brought)), node, other, place)
        return DONE

    # -- files made ------------------------------------------------------------------------------------------------
    cdef int make(
        self, uint32_t procedure, Standing standing, Node directory, name_arguments_t *arguments, Place place, Work brought
    ) except -1:
        """CREATE, MKDIR, SYMLINK and MKNOD."""
        cdef NameChange change = begun(brought)
        cdef uint32_t status
        cdef int outcome = GENERAL
        if change is None:
            status = NFS3ERR_ROFS if standing.read_only else self.new_name(&arguments.name) or arguments.wrong
            status = status or self.changeable(directory)
            if status != NFS3_OK:
                return self.fail(procedure, status, directory, None, place)
            if procedure != NFSPROC3_MKNOD:
                change = self.to_make(procedure, standing, directory, arguments)
                if change is None:
                    outcome = self.unprepared(procedure, directory, None, standing, place, brought)
        if change is not None:
            outcome = self.carry(procedure, change, brought, standing, directory, None, place)
        if outcome == DONE:
            return self.store_made(
                change.made, &change.data.status, directory, &change.data.before, &change.data.after, place
            )
        if outcome == TAKEN and arguments.how == GUARDED:
            return self.fail(procedure, NFS3ERR_EXIST, directory, None, place)
        if outcome < DONE:
            return outcome
        return self.hand_over(self.made_by_errand(procedure, standing, directory, arguments), directory, None, standing)

    cdef NameChange to_make(
        self, uint32_t procedure, Standing standing, Node directory, name_arguments_t *arguments
    ):
        """What makes it, if that can be done at once or by one worker."""
        cdef opaque_t *name = &arguments.name
        if procedure == NFSPROC3_SYMLINK:
            return self.files.to_symlink(
                standing.credential, directory, name.octets, name.length, text_of(arguments), &arguments.changes
            )
        return self.files.to_make(
            MAKE_FILE if procedure == NFSPROC3_CREATE else MAKE_DIRECTORY, standing.credential, directory,
            name.octets, name.length, &arguments.changes, max(arguments.size, 0),
        )

    cdef object made_by_errand(
        self, uint32_t procedure, Standing standing, Node directory, name_arguments_t *arguments
    ):
        """The errand that makes it otherwise."""
        cdef bytes name = octets_of(&arguments.name)
        cdef bytes verifier = None
        if procedure == NFSPROC3_CREATE and arguments.how == EXCLUSIVE:
            verifier = PyBytes_FromStringAndSize(<char *>arguments.verifier, 8)
            # It is kept where these are, by whoever makes the file.
            arguments.changes.times[0].nanoseconds = arguments.changes.times[1].nanoseconds = UTIME_OMIT
        credential, attributes = standing.credential, initial(arguments)
        if procedure == NFSPROC3_CREATE:
            return self.errands.create(
                credential, directory, None, name, attributes, arguments.how >= GUARDED, verifier
            )
        if procedure == NFSPROC3_MKDIR:
            return self.errands.mkdir(credential, directory, None, name, attributes)
        if procedure == NFSPROC3_SYMLINK:
            return self.errands.symlink(credential, directory, None, name, text_of(arguments), attributes)
        device = arguments.device[0], arguments.device[1]
        return self.errands.mknod(credential, directory, None, name, arguments.type, device, attributes)

    # -- names removed and moved -----------------------------------------------------------------------------------
    cdef int remove(
        self, uint32_t procedure, Standing standing, Node directory, name_arguments_t *arguments, Place place,
        Work brought
    ) except -1:
        """REMOVE and RMDIR."""
        cdef NameChange change = begun(brought)
        cdef opaque_t *name = &arguments.name
        cdef uint32_t status
        cdef int outcome = AGAIN
        if change is not None:
            outcome = self.carry(procedure, change, brought, standing, directory, None, place)
            brought = None if outcome == AGAIN else brought
        if outcome == AGAIN:
            status = NFS3ERR_ROFS if standing.read_only else NFS3_OK if is_component(name) else NFS3ERR_ACCES
            if status == NFS3_OK and is_dots(name):
                if procedure == NFSPROC3_REMOVE:
                    status = NFS3ERR_ISDIR
                else:  # section 3.3.13, IMPLEMENTATION
                    status = NFS3ERR_INVAL if name.length == 1 else NFS3ERR_EXIST
            status = status or self.changeable(directory)
            if status != NFS3_OK:
                return self.fail(procedure, status, directory, None, place)
            change = self.files.to_remove(
                REMOVE_NAME if procedure == NFSPROC3_REMOVE else REMOVE_DIRECTORY, standing.credential, directory,
                name.octets, name.length,
            )
            if change is None:
                outcome = self.unprepared(procedure, directory, None, standing, place, brought)
            else:
                outcome = self.carry(procedure, change, brought, standing, directory, None, place)
        if outcome == DONE:
            place.at = self.store_around(
                store32(place.at, NFS3_OK), directory, &change.data.before, &change.data.after
            )
            return ANSWERED
        if outcome < DONE:
            return outcome
        coroutine = self.errands.remove(
            standing.credential, directory, None, octets_of(name), procedure == NFSPROC3_RMDIR
        )
        return self.hand_over(coroutine, directory, None, standing)

    cdef Node other_file(self, name_arguments_t *arguments, bint *read_only):
        """The second file of a call, and whether the caller may only read it; None: it has yet to be brought."""
        cdef Node node
        cdef Standing standing
        if self.have is not None and self.have.other_standing is not None:
            read_only[0] = self.have.other_standing.read_only
            return self.have.other
        self.files.why = NODE
        node = self.files.find(arguments.handle.data.octets, arguments.handle.data.length)
        if node is None:
            return None
        standing = self.files.standing(self.caller, node)
        if standing is None:
            return None
        read_only[0] = standing.read_only
        return node

    cdef int arrive_there(self, Node node, Standing standing, name_arguments_t *arguments, Work brought) except -1:
        """WAITS, for the second file of a call."""
        return self.need(OTHER, node, standing, brought, octets_of(&arguments.handle.data))

    cdef int rename(
        self, Standing standing, Node source, name_arguments_t *arguments, Place place, Work brought
    ) except -1:
        """A directory that is not empty in the way is NFS3ERR_NOTEMPTY, as Linux clients and programs expect from
        rename(); section 3.3.14 would rather have NFS3ERR_EXIST, but lists both."""
        cdef NameChange change = begun(brought)
        cdef opaque_t *old = &arguments.name
        cdef opaque_t *new = &arguments.new_name
        cdef bint read_only = False
        cdef Node target = None
        cdef uint32_t status
        cdef int outcome = AGAIN
        if change is not None:
            target = change.directory
            outcome = self.carry(NFSPROC3_RENAME, change, brought, standing, source, target, place)
            brought = None if outcome == AGAIN else brought
        if outcome == AGAIN:
            if standing.read_only:
                return self.fail(NFSPROC3_RENAME, NFS3ERR_ROFS, source, None, place)
            target = self.other_file(arguments, &read_only)
            if target is None:
                return self.arrive_there(source, standing, arguments, brought)
            status = NFS3ERR_ROFS if read_only else renamed(old, new)
            if status == NFS3_OK and source.export.id != target.export.id:
                status = NFS3ERR_XDEV
            status = status or self.changeable(source) or self.changeable(target)
            if status == NFS3_OK and source.mount is not target.mount:
                status = NFS3ERR_XDEV
            if status != NFS3_OK:
                return self.fail(NFSPROC3_RENAME, status, source, target, place)
            change = self.files.to_rename(
                standing.credential, source, old.octets, old.length, target, new.octets, new.length
            )
            if change is None:
                outcome = self.unprepared(NFSPROC3_RENAME, source, target, standing, place, brought)
            else:
                outcome = self.carry(NFSPROC3_RENAME, change, brought, standing, source, target, place)
        if outcome == DONE:
            return self.store_renamed(change, place)
        if outcome < DONE:
            return outcome
        return self.hand_over(
            self.errands.rename(standing.credential, source, target, octets_of(old), octets_of(new)),
            source, target, standing,
        )

    cdef int store_renamed(self, NameChange change, Place place) except -1:
        """RENAME3resok."""
        cdef bint across = change.data.across
        place.at = self.store_around(
            store32(place.at, NFS3_OK), change.old_directory,
            &change.data.old_before if across else &change.data.before,
            &change.data.old_after if across else &change.data.after,
        )
        place.at = self.store_around(place.at, change.directory, &change.data.before, &change.data.after)
        return ANSWERED

    cdef int link(
        self, Standing standing, Node node, name_arguments_t *arguments, Place place, Work brought
    ) except -1:
        cdef NameChange change = begun(brought)
        cdef opaque_t *name = &arguments.name
        cdef bint read_only = False
        cdef Node directory = None
        cdef uint32_t status
        cdef int outcome
        if change is None:
            if standing.read_only:
                return self.fail(NFSPROC3_LINK, NFS3ERR_ROFS, node, None, place)
            directory = self.other_file(arguments, &read_only)
            if directory is None:
                return self.arrive_there(node, standing, arguments, brought)
            status = NFS3ERR_ROFS if read_only else self.new_name(name)
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
            outcome = self.unprepared(NFSPROC3_LINK, node, directory, standing, place, brought)
        else:
            directory = change.directory
            outcome = self.carry(NFSPROC3_LINK, change, brought, standing, node, directory, place)
        if outcome == DONE:
            place.at = self.store_seen(store32(place.at, NFS3_OK), node, &change.data.status)
            place.at = self.store_around(place.at, directory, &change.data.before, &change.data.after)
            return ANSWERED
        if outcome < DONE:
            return outcome
        return self.hand_over(
            self.errands.link(standing.credential, node, directory, octets_of(name)), node, directory, standing
        )
