"""CREATE, REMOVE, RENAME and LINK in native COMPOUNDs (RFC 8881 sections 18.4, 18.9, 18.25, 18.26; RFC 7530 sections 16.4,
16.9, 16.26, 16.27).

Owns :class:`NameChanges`; imports :mod:`nfsd.v4.changes`, the file service's native changes of names, and
:mod:`nfsd.v4.name_errands`.

Each operation looks at its arguments, has the change prepared, or finds the one that has been brought, has it carried
through (:meth:`NameChanges.proceed`), and writes the result. Where that is of no avail, nothing has been done, and the
operation waits for an errand that does it by the file service's general methods; then it writes the result of that.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EINTR, EMFILE, ENFILE, ENOENT, ESTALE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memchr, memset

from nfsd.v4.changes cimport status_in, store_change_info, wrong_name
from nfsd.v4.native_compound cimport padded, room
from nfsd.v4.fattr cimport WORDS, store_mask
from nfsd.v4.given cimport load_given
from nfsd.vfs.attributes cimport statx_t
from nfsd.vfs.native_files cimport no
from nfsd.vfs.name_changes cimport MAKE_DIRECTORY, REMOVE_ANY, NameChange, Walk
from nfsd.vfs.records cimport Credential, Node
from nfsd.vfs.transfers cimport errno_of
from nfsd.wire.nfs4 cimport (
    NF4BLK, NF4CHR, NF4DIR, NF4LNK, NFS4ERR_BADXDR, NFS4ERR_EXIST, NFS4ERR_INVAL, NFS4ERR_ISDIR,
    NFS4ERR_NOFILEHANDLE, NFS4ERR_NOTDIR, NFS4ERR_ROFS, NFS4ERR_XDEV, NFS4_OK, OP_CREATE, OP_LINK, OP_REMOVE, OP_RENAME,
    change_info4_SIZE,
)
from rpcrdma.declined cimport ATTRIBUTES, FAILED, PROCEDURE, SIZE
from rpcrdma.octets cimport array_t, load_array, load_opaque, opaque_t
from rpcrdma.place cimport ANSWERED, DECLINED, load32, store32
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.protocol.nfs4_types import ATTRIBUTES_LIMIT as _ATTRIBUTES_LIMIT
from nfsd.protocol.nfs4_types import BITMAP_LIMIT as _BITMAP_LIMIT
from nfsd.protocol.nfs4_types import NAME_LIMIT as _NAME_LIMIT
from nfsd.v4 import name_errands
from nfsd.v4.arrivals import Barred
from nfsd.vfs.types import FileType

cdef enum:
    TEXT_MAX = 4096             # of a symbolic link: what is longer is too long for every file system
    DIRECTORY_MODE = 0o755      # without one (nfsd.vfs.creation)
    CREATE_RESULT = 8 + change_info4_SIZE + 16

cdef uint32_t ATTRIBUTES_LIMIT = _ATTRIBUTES_LIMIT
cdef uint32_t BITMAP_LIMIT = _BITMAP_LIMIT
cdef uint32_t NAME_LIMIT = _NAME_LIMIT
cdef object DIR = FileType.DIR


cdef NameChange begun(Work brought):
    """The change of names that a COMPOUND has waited for, whatever it has waited for since; None: it has not begun."""
    while brought is not None and not isinstance(brought, NameChange):
        brought = brought.earlier
    return <NameChange>brought


cdef inline bint begins(Work brought) noexcept:
    """Whether nothing has been begun: nothing has been waited for but a look at names."""
    return brought is None or isinstance(brought, Walk)


cdef bytes octets_of(opaque_t *name):
    return PyBytes_FromStringAndSize(<char *>name.octets, name.length)


cdef const uint8_t *load_attributes(const uint8_t *at, const uint8_t *end, uint32_t *mask) noexcept:
    """Behind a fattr4, of which these are the first three words of the mask; NULL: it is none."""
    cdef array_t words
    cdef opaque_t values
    cdef uint32_t word
    at = load_array(at, end, BITMAP_LIMIT, 4, &words)
    if at == NULL:
        return NULL
    for word in range(3):
        mask[word] = load32(words.octets + 4 * word) if word < words.count else 0
    return load_opaque(at, end, ATTRIBUTES_LIMIT, &values)


cdef inline bint cannot_be_kept(opaque_t *text) noexcept nogil:
    """Of a symbolic link's text: symlink(2) has ENOENT for an empty one, and cannot be told of a NUL."""
    return text.length == 0 or memchr(text.octets, 0, text.length) != NULL


cdef class Carried(Errand):
    pass


cdef class NameChanges(Nfs4Changes):
    # -- what all have in common -----------------------------------------------------------------------------------
    cdef int proceed(self, NameChange change, Work brought, Place place) except -1:
        """Go on with an operation, with what it has waited for, or with a ``change`` that has just been prepared (None: it
        could not be). DONE: the change is done and, on a disk, on stable storage; DECLINED: nothing has been done, and
        an errand must do it; else the outcome for now."""
        if isinstance(brought, Carried):
            self.done = True
            if (<Carried>brought).error is not None:
                raise (<Carried>brought).error
            outcome = (<Carried>brought).result
            return self.fail(<uint32_t>outcome, place) if isinstance(outcome, int) else DONE
        return self.unprepared(brought) if change is None else self.carry(change, brought, place)

    cdef int unprepared(self, Work brought) except -1:
        """What becomes of a COMPOUND whose change could not be prepared: it waits for what that needs, once."""
        if self.files.needs is None or brought is not None:
            return DECLINED
        return self.wait_for(self.files.needs, None)

    cdef int carry(self, NameChange change, Work brought, Place place) except -1:
        """Carry a change of names through; the outcome as of :meth:`proceed`."""
        cdef bint inline = change.directory.inline
        if begun(brought) is None and not inline:
            return self.wait_for(change, None)
        if begun(brought) is None or brought is change:
            if not self.files.settled(change):
                return self.refused(change.data.error, change.directory, change.old_directory, place)
            self.done = True
            if inline or change.directory.export.late_names:
                return DONE
            return self.wait_for(self.files.to_settle(change), change)
        self.done = True
        if errno_of(<Errand?>brought):
            return self.fail(status_in(errno_of(<Errand>brought)), place)  # it is done, but perhaps not for good
        return DONE

    cdef int refused(self, int error, Node directory, Node other, Place place) except -1:
        """The failure that an errno stands for, after nothing has been done. DECLINED where another attempt may do: where
        descriptors are short (the kernel's count some that the server has just let go of), where a name leads elsewhere by
        now."""
        if error == EMFILE or error == ENFILE or error == ESTALE or error == EINTR:
            return no(self.files, FAILED)
        if error == ENOENT and (self.files.is_gone(directory) or (other is not None and self.files.is_gone(other))):
            error = ESTALE  # it is a directory that is gone
        return self.fail(status_in(error), place)

    cdef int hand_on(self, object coroutine) except -1:
        """WAITS, for an errand that does all of it."""
        return self.wait_for(Carried(coroutine), None)

    cdef int succeeded(self, NameChange change, Work brought, Place place) except -1:
        """The operation has succeeded; the change_info4 of the current directory is the last of its result."""
        if change is None:
            *_, (before, after) = (<Carried>brought).result.changes
            place.at = store_change_info(place.at, before, after)
            self.seen = False
            return ANSWERED
        place.at = store_change_info(place.at, change.change_before, change.change_after)
        self.saw_change(self.current, &change.data.after)
        return ANSWERED

    cdef uint32_t changeable(self) noexcept:
        """NFS4_OK, or why no name in the current directory can be changed by this client."""
        self.files.asker = self.client
        if self.standing.read_only:
            return NFS4ERR_ROFS
        return NFS4ERR_NOTDIR if self.current.type is not DIR else NFS4_OK

    cdef uint32_t moving(self, bint directory, uint32_t status) noexcept:
        """NFS4_OK, or why nothing gets a name in the current directory that comes from the saved file; ``status`` if that
        is a ``directory``, or is none."""
        self.files.asker = self.client
        if type(self.saved_pseudo) is Barred:
            return NFS4ERR_XDEV     # other callers than here (RFC 8881 section 2.6.3.1.2): it is in another export
        if self.saved is None:
            return self.saved_foreign or (NFS4ERR_NOFILEHANDLE if self.saved_pseudo is None else NFS4ERR_ROFS)
        if self.saved_standing.read_only or self.standing.read_only:
            return NFS4ERR_ROFS
        if self.current.type is not DIR:
            return NFS4ERR_NOTDIR
        if (self.saved.type is DIR) == directory:
            return status
        if self.saved.export.id != self.current.export.id or self.saved.mount is not self.current.mount:
            return NFS4ERR_XDEV
        return NFS4_OK

    # -- CREATE ----------------------------------------------------------------------------------------------------
    cdef int create(self, Arguments *arguments, Place place) except -1:
        cdef creation_t creation
        cdef const uint8_t *fetched = self.bulk_wanted
        cdef int outcome
        arguments.at = self.load_creation(arguments.at, arguments.end, place, &creation)
        if arguments.at == NULL:
            return self.fail(NFS4ERR_BADXDR, place)
        if creation.fetched:
            self.bulk_wanted = NULL  # so that a failure is this one's
        elif fetched != NULL and fetched < arguments.at:
            return self.fail(NFS4ERR_BADXDR, place)
        outcome = self.create_this(&creation, place)
        if outcome != ANSWERED:
            self.bulk_wanted = fetched
        return outcome

    cdef int create_this(self, creation_t *creation, Place place) except -1:
        cdef settable_t given
        cdef uint32_t status
        cdef int outcome = DECLINED
        cdef Work brought = self.brought_here()
        cdef NameChange change = begun(brought)
        if begins(brought):
            if not room(place, CREATE_RESULT):
                return no(self.files, SIZE)
            status = wrong_name(&creation.name) or self.changeable()
            if status != NFS4_OK:
                return self.fail(status, place)
            if creation.kind != NF4DIR and creation.kind != NF4LNK:
                self.files.why = PROCEDURE
            elif not self.makes_with(creation, &given):
                self.files.why = ATTRIBUTES
            elif creation.kind == NF4LNK and cannot_be_kept(&creation.text):
                return self.fail(NFS4ERR_INVAL, place)
            else:
                change = self.to_create(creation, &given)
                outcome = self.proceed(change, brought, place)
        else:
            outcome = self.proceed(change, brought, place)
        if outcome == DECLINED:
            return self.hand_on(name_errands.create(
                self.server, self.client, self.minor, self.standing.credential, self.current, octets_of(&creation.name),
                creation.kind, octets_of(&creation.text), (creation.device[0], creation.device[1]),
                PyBytes_FromStringAndSize(<char *>creation.attributes, creation.behind - creation.attributes),
            ))
        if outcome != DONE:
            return outcome
        place.at = store32(store32(place.at, OP_CREATE), NFS4_OK)
        if change is None:
            self.succeeded(None, brought, place)
            self.go((<Carried>brought).result.node)
        else:
            place.at = store_change_info(place.at, change.change_before, change.change_after)
            self.go(change.made)
            self.saw_change(change.made, &change.data.status)
        place.at = store_mask(place.at, creation.mask, WORDS)
        return ANSWERED

    cdef const uint8_t *load_creation(
        self, const uint8_t *at, const uint8_t *end, Place place, creation_t *into
    ) noexcept:
        """Behind CREATE4args; NULL: they are none."""
        memset(into, 0, sizeof(into[0]))
        if end - at < 4:
            return NULL
        into.kind = load32(at)
        at += 4
        if into.kind == NF4LNK:
            at = self.load_text(at, end, place, into)
        elif into.kind == NF4BLK or into.kind == NF4CHR:
            if end - at < 8:
                return NULL
            into.device[0], into.device[1] = load32(at), load32(at + 4)
            at += 8
        if at != NULL:
            at = into.attributes = load_opaque(at, end, NAME_LIMIT, &into.name)
        if at != NULL:
            at = into.behind = load_attributes(at, end, into.mask)
        return at

    cdef const uint8_t *load_text(
        self, const uint8_t *at, const uint8_t *end, Place place, creation_t *into
    ) noexcept:
        """Behind the linkdata of a symbolic link, which may come in a Read chunk: it is DDP-eligible (RFC 8267 section 5).
        The chunk is the item, or the item with its padding (RFC 8166 section 3.4.5.2)."""
        cdef uint32_t length
        if end - at < 4 or self.bulk_wanted != at + 4:
            at = load_opaque(at, end, NAME_LIMIT, &into.text)
        else:
            length = load32(at)
            at += 4
            if length > NAME_LIMIT or (place.bulk_size != length and place.bulk_size != padded(length)):
                return NULL
            into.text.octets, into.text.length, into.fetched = place.bulk, length, True
        return at

    cdef bint makes_with(self, creation_t *creation, settable_t *given) except -1:
        """Whether all attributes of what is to be made are known natively, and can be given."""
        load_given(creation.attributes, creation.behind, self.minor, self.server.names, given)
        return not given.failure and not given.rare and given.size < 0

    cdef NameChange to_create(self, creation_t *creation, settable_t *given):
        """The creation of a directory or a symbolic link; None declines."""
        cdef Credential credential = self.standing.credential
        cdef opaque_t *name = &creation.name
        if creation.kind == NF4LNK:
            return self.files.to_symlink(
                credential, self.current, name.octets, name.length,
                PyBytes_FromStringAndSize(
                    <char *>creation.text.octets, min(creation.text.length, <uint32_t>TEXT_MAX)
                ),
                &given.changes,
            )
        if given.changes.mode < 0:
            given.changes.mode = DIRECTORY_MODE
        return self.files.to_make(
            MAKE_DIRECTORY, credential, self.current, name.octets, name.length, &given.changes, 0, given.umask
        )

    # -- REMOVE and LINK -------------------------------------------------------------------------------------------
    cdef int name_given(
        self, Arguments *arguments, bint first, uint32_t refusal, opaque_t *name, Place place
    ) except -1:
        """Load the name that REMOVE or LINK is about; at ``first`` see that there may be a change: ``refusal`` is NFS4_OK or
        why not. DONE, or the outcome."""
        cdef uint32_t status
        arguments.at = load_opaque(arguments.at, arguments.end, NAME_LIMIT, name)
        if arguments.at == NULL:
            return self.fail(NFS4ERR_BADXDR, place)
        if not first:
            return DONE
        if not room(place, 8 + change_info4_SIZE):
            return no(self.files, SIZE)
        status = wrong_name(name) or refusal
        return DONE if status == NFS4_OK else self.fail(status, place)

    cdef int remove(self, Arguments *arguments, Place place) except -1:
        cdef opaque_t name
        cdef int outcome
        cdef Work brought = self.brought_here()
        cdef NameChange change = begun(brought)
        outcome = self.name_given(arguments, begins(brought), self.changeable(), &name, place)
        if outcome != DONE:
            return outcome
        if begins(brought):
            self.files.walked = <Walk>brought
            change = self.files.to_remove(REMOVE_ANY, self.standing.credential, self.current, name.octets, name.length)
        outcome = self.proceed(change, brought, place)
        if outcome == DECLINED:
            return self.hand_on(name_errands.remove(
                self.server, self.client, self.standing.credential, self.current, octets_of(&name)
            ))
        if outcome != DONE:
            return outcome
        place.at = store32(store32(place.at, OP_REMOVE), NFS4_OK)
        return self.succeeded(change, brought, place)

    cdef int link(self, Arguments *arguments, Place place) except -1:
        cdef opaque_t name
        cdef int outcome
        cdef Node node = self.saved
        cdef Work brought = self.brought_here()
        cdef NameChange change = begun(brought)
        outcome = self.name_given(arguments, begins(brought), self.moving(True, NFS4ERR_ISDIR), &name, place)
        if outcome != DONE:
            return outcome
        if begins(brought):
            change = self.files.to_link(self.standing.credential, node, self.current, name.octets, name.length)
        outcome = self.proceed(change, brought, place)
        if outcome == DECLINED:
            return self.hand_on(name_errands.link(
                self.server, self.client, self.standing.credential, node, self.current, octets_of(&name)
            ))
        if outcome != DONE:
            return outcome
        place.at = store32(store32(place.at, OP_LINK), NFS4_OK)
        return self.succeeded(change, brought, place)

    # -- RENAME ----------------------------------------------------------------------------------------------------
    cdef int rename(self, Arguments *arguments, Place place) except -1:
        cdef opaque_t old, new
        cdef uint32_t status
        cdef int outcome
        cdef Node source = self.saved
        cdef Work brought = self.brought_here()
        cdef NameChange change = begun(brought)
        arguments.at = load_opaque(arguments.at, arguments.end, NAME_LIMIT, &old)
        if arguments.at != NULL:
            arguments.at = load_opaque(arguments.at, arguments.end, NAME_LIMIT, &new)
        if arguments.at == NULL:
            return self.fail(NFS4ERR_BADXDR, place)
        if begins(brought):
            if not room(place, 8 + 2 * change_info4_SIZE):
                return no(self.files, SIZE)
            status = wrong_name(&old) or wrong_name(&new) or self.moving(False, NFS4ERR_NOTDIR)
            if status != NFS4_OK:
                return self.fail(status, place)
            self.files.walked = <Walk>brought
            change = self.files.to_rename(
                self.standing.credential, source, old.octets, old.length, self.current, new.octets, new.length
            )
        outcome = self.proceed(change, brought, place)
        if outcome == DECLINED:
            return self.hand_on(name_errands.rename(
                self.server, self.client, self.standing.credential, source, octets_of(&old), self.current,
                octets_of(&new),
            ))
        if outcome == ANSWERED and self.failure == NFS4ERR_ISDIR:
            # RFC 8881 section 18.26.3: a directory and a file do not fit.
            return self.fail(NFS4ERR_EXIST, place)
        if outcome != DONE:
            return outcome
        place.at = store32(store32(place.at, OP_RENAME), NFS4_OK)
        if change is None:
            before, after = (<Carried>brought).result.changes[0]
            place.at = store_change_info(place.at, before, after)
        elif change.data.across:
            place.at = store_change_info(place.at, change.old_change_before, change.old_change_after)
        else:
            place.at = store_change_info(place.at, change.change_before, change.change_after)
        return self.succeeded(change, brought, place)
