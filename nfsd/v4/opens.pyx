"""OPEN and OPEN_DOWNGRADE in COMPOUNDs (RFC 8881 sections 18.16, 18.18; RFC 7530 sections 16.16, 16.19).

Owns the decoding and encoding, and :class:`Nfs4Opens`. Imports :mod:`nfsd.v4.name_changes`, and :mod:`nfsd.v4.opening`, which has what
is done to the state of clients.

The file is found here if it is the current one, or has a name in the current directory, on the same mount, or is to be made.
Every other OPEN is an errand that finds the file as well. From there on there is one way for all. In the pseudo file
system there is nothing to be opened.

An OPEN looks at what can refuse it before it makes a file. Then the file is there and stays open, so that opening it takes
the share reservation and nothing else. In NFSv4.0 its owner's turn has begun before (RFC 7530 section 9.1.7), and the owner is
busy for as long as the OPEN waits.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EACCES, ENOENT
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from nfsd.state.opens cimport OpenTable
from nfsd.state.owners cimport OpenOwner
from nfsd.state.records cimport ClientRecord, Delegation, OpenState, backchannel_usable, stateid_of
from nfsd.v4.changes cimport store_change_info, wrong_name
from nfsd.v4.native_compound cimport left, padded, room
from nfsd.v4.owners cimport BEGUN, store_stateid
from nfsd.v4.fattr cimport WORDS, store_mask
from nfsd.v4.given cimport load_given
from nfsd.v4.name_changes cimport DONE, begun, octets_of
from nfsd.v4.opened cimport open_already, rflags, take_over, undelegated
from nfsd.vfs.native_files cimport NAME_MAX, UTIME_OMIT, no, no_changes
from nfsd.vfs.name_changes cimport MAKE_FILE, NameChange, Walk
from nfsd.vfs.records cimport Credential, Node, OpenFile
from nfsd.wire.nfs4 cimport (
    CLAIM_DELEGATE_CUR, CLAIM_DELEG_CUR_FH, CLAIM_FH, CLAIM_NULL, CLAIM_PREVIOUS, EXCLUSIVE4, EXCLUSIVE4_1,
    FATTR4_TIME_ACCESS, FATTR4_TIME_MODIFY, GUARDED4,
    NFS4ERR_ACCESS, NFS4ERR_BADXDR, NFS4ERR_EXIST, NFS4ERR_INVAL, NFS4ERR_NOENT, NFS4ERR_ROFS, NFS4ERR_SYMLINK, NFS4_OK,
    NFS4_OPAQUE_LIMIT, NFS4_VERIFIER_SIZE,
    NFS_LIMIT_SIZE, OPEN4_CREATE, OPEN4_NOCREATE, OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE,
    OPEN4_SHARE_DENY_BOTH, OPEN_DELEGATE_NONE, OPEN_DELEGATE_NONE_EXT, OPEN_DELEGATE_READ, OPEN_DELEGATE_WRITE,
    OPEN_DELEGATE_WRITE_ATTRS_DELEG, OP_OPEN, OP_OPEN_DOWNGRADE, UNCHECKED4, WND4_CONTENTION, WND4_RESOURCE, change_info4_SIZE, stateid4_SIZE,
)
from rpcrdma.declined cimport SIZE
from rpcrdma.octets cimport load_opaque, opaque_t
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, load32, load64, store32, store64
from rpcrdma.rpc.work cimport Errand, Work

from nfsd.protocol import nfs4 as declared
from nfsd.state import Nfs4Error
from nfsd.v4 import opening
from nfsd.vfs.types import FileType

cdef extern from "Python.h":
    const int PyBUF_READ

cdef enum:
    BITMAP_SIZE = 16
    DELEGATION = 4 + stateid4_SIZE + 4 + 12 + 16    # at most: of a write delegation
    OPEN_RESULT = 8 + stateid4_SIZE + change_info4_SIZE + 4 + BITMAP_SIZE + DELEGATION
    VERIFIER_MASK = 0x7FFFFFFF  # nfsd.vfs.creation
    FILE_MODE = 0o600           # without one, as there
    # In the second word.
    TIMES = 1 << (FATTR4_TIME_ACCESS - 32) | 1 << (FATTR4_TIME_MODIFY - 32)


cdef uint32_t WISHES = opening.WISHES
cdef uint32_t WANT = declared.OPEN4_SHARE_ACCESS_WANT_DELEG_MASK
cdef uint32_t EITHER = declared.OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION
cdef uint32_t TIMESTAMPS = declared.OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS
cdef uint32_t WITHOUT = declared.OPEN4_RESULT_NO_OPEN_STATEID
cdef object REG = FileType.REG
cdef object DIR = FileType.DIR
cdef object Asked = opening.Asked
cdef object Named = opening.Named
cdef object Where = opening.Where
cdef object opened_later = opening.open_file
cdef object opening_delegated = opening.delegated
cdef object UNCONFIRMED = declared.why_no_delegation4.WND4_RESOURCE


cdef uint8_t *store_no_delegation(uint8_t *at, uint32_t wanted, uint32_t why) noexcept nogil:
    """No delegation; in 4.1, ``why`` for a client that has expressed a wish (RFC 8881 section 18.16.3). No wish is
    remembered: the client asks again when it opens the file the next time."""
    if not wanted & WANT:
        return store32(at, OPEN_DELEGATE_NONE)
    at = store32(store32(at, OPEN_DELEGATE_NONE_EXT), why)
    return store32(at, 0) if why == WND4_CONTENTION or why == WND4_RESOURCE else at


cdef uint8_t *store_delegation(uint8_t *at, Delegation given) except NULL:
    """A delegation; ``recall`` is set if it is being recalled already."""
    cdef bytes other = given.other
    if given.times is not None:
        at = store32(at, OPEN_DELEGATE_WRITE_ATTRS_DELEG)
    else:
        at = store32(at, OPEN_DELEGATE_WRITE if given.write else OPEN_DELEGATE_READ)
    memcpy(store32(at, given.seqid), <const uint8_t *>other, stateid4_SIZE - 4)
    at = store32(at + stateid4_SIZE, given.recall_by is not None)
    if given.write:
        # No space is reserved for what the client caches: like Linux's server, and like a local disk's page cache.
        at = store64(store32(at, NFS_LIMIT_SIZE), <uint64_t>0xFFFFFFFFFFFFFFFF)
    # An nfsace4 that allows nobody anything (ACCESS_ALLOWED, no flags, no access, no name): the client asks ACCESS before it
    # opens the file on somebody's behalf.
    memset(at, 0, 16)
    return at + 16


def open_delegation4(granted, uint32_t wanted):
    cdef uint8_t octets[DELEGATION]
    cdef uint8_t *behind
    if isinstance(granted, Delegation):
        behind = store_delegation(octets, <Delegation>granted)
    else:
        behind = store_no_delegation(octets, wanted, <uint32_t>granted)
    return PyBytes_FromStringAndSize(<char *>octets, behind - octets)


cdef class Opening(Errand):
    pass


cdef Opening opening_of(object coroutine, Node node, NameChange change, size_t used):
    cdef Opening made = Opening.__new__(Opening)
    made.coroutine = coroutine
    made.node, made.change, made.used = node, change, used
    memset(made.shown, 0, sizeof(made.shown))
    return made


cdef class Nfs4Opens(NameChanges):
    cdef int open(self, Arguments *arguments, Place place) except -1:
        cdef Work brought = self.brought_here()
        cdef const uint8_t *at = NULL
        cdef createhow_t how
        cdef opaque_t name
        cdef uint32_t claim
        cdef int outcome
        if isinstance(brought, Opening):
            return self.store_opened(<Opening>brought, arguments, place)
        if not room(place, OPEN_RESULT):
            return no(self.files, SIZE)
        if not self.may_wait():
            return DECLINED
        if self.pseudo is not None or not self.usual(arguments, &at):
            return self.open_rarely(brought, arguments, place)
        if load32(at) == OPEN4_CREATE:
            at = self.load_how(at + 4, arguments.end, &how)
            if at == NULL or arguments.end - at < 4 or load32(at) != CLAIM_NULL:
                return self.open_rarely(brought, arguments, place)
            at = load_opaque(at + 4, arguments.end, NAME_MAX, &name)
            if at == NULL:
                return self.open_rarely(brought, arguments, place)
            outcome = self.open_turn(False, False, brought, arguments, place)
            return outcome if outcome != BEGUN else self.open_new(&how, &name, at, brought, arguments, place)
        claim = load32(at + 4)
        at += 8
        if claim == CLAIM_NULL:
            at = load_opaque(at, arguments.end, NAME_MAX, &name)
        if at == NULL or (claim != CLAIM_NULL and (claim != CLAIM_FH or not self.minor)):
            return self.open_rarely(brought, arguments, place)
        outcome = self.open_turn(False, False, brought, arguments, place)
        return outcome if outcome != BEGUN else self.open_there(claim, &name, at, brought, arguments, place)

    cdef bint usual(self, Arguments *arguments, const uint8_t **how) except -1:
        """Whether the arguments begin as usual: with share bits and an owner that may be, before ``how``, an opentype that
        is."""
        cdef const uint8_t *at = arguments.at
        cdef uint32_t length
        # seqid, share_access, share_deny, clientid; owner; opentype, claim or createmode.
        if left(arguments) < 24:
            return False
        length = load32(at + 20)
        if length > NFS4_OPAQUE_LIMIT or left(arguments) < 24 + padded(length) + 8:
            return False
        self.seqid, self.share_access, self.denied = load32(at), load32(at + 4), load32(at + 8)
        self.share = self.share_access & ~WISHES if self.minor else self.share_access
        self.owner = (at + 24)[:length]
        if self.share < 1 or self.share > OPEN4_SHARE_ACCESS_BOTH or self.denied > OPEN4_SHARE_DENY_BOTH:
            return False
        how[0] = at + 24 + padded(length)
        return load32(how[0]) == OPEN4_CREATE or load32(how[0]) == OPEN4_NOCREATE

    cdef int open_turn(self, bint reclaim, bint held, Work brought, Arguments *arguments, Place place) except -1:
        """Begin the OPEN: in v4.0, the next operation of its owner. BEGUN, or the outcome of a retransmission. ``held``: it
        claims what a delegation covers. Raises BAD_SEQID, and GRACE and its kin."""
        if self.minor:
            if brought is None:
                self.state.opens.check_claim(self.client, reclaim, held)
            return BEGUN
        if self.turn is not None:
            return BEGUN
        self.files.pause()  # Python code of the server runs as the server
        client = self.named_client(load64(arguments.at + 12))
        owner, replay = self.state.opens.begin40(client, self.owner, self.seqid)
        if replay is not None:
            arguments.at += opening.decode(PyMemoryView_FromMemory(<char *>arguments.at, left(arguments), PyBUF_READ))[1]
            return self.give_again(replay, brought, place)
        self.turn, self.opened_by = owner, client
        self.state.opens.check_claim(client, reclaim, held)
        return BEGUN

    cdef object asked(self, Opening opening, opaque_t *name):
        """Who asks for what (:class:`nfsd.v4.opening.Asked`), and by what name in the current directory; NULL: by none."""
        cdef object by = None
        if name != NULL:
            by = Named(
                self.standing.credential, self.current, octets_of(name), None if opening.walked else opening.after
            )
        if self.minor:
            return Asked(
                self.server, self.client, self.owner, self.caller.credential, self.share, self.denied, self.share_access & WANT,
                (self.session.sessionid, self.slotid, self.sequenceid), self.share_access & EITHER != 0,
                self.share_access & TIMESTAMPS != 0, by,
            )
        return Asked(
            self.server, self.turn.client, self.turn, self.caller.credential, self.share, self.denied, 0, None, False, False, by
        )

    cdef int open_now(self, Opening opening, opaque_t *name, OpenFile opened, bint created) except -1:
        """Open the file without a coroutine if nothing stands in the way, and nothing has to be waited for. ``name``: that by
        which it was found, or NULL; ``opened``: what its creation has left open, with a count that is taken over."""
        cdef OpenTable table = self.state.opens
        cdef ClientRecord client = self.client if self.minor else self.turn.client
        self.files.pause()  # Python code of the server runs as the server
        if opened is not None and self.share == OPEN4_SHARE_ACCESS_READ and self.server.leases:
            pass  # what may be delegated is opened so that it cannot be written to
        elif table.is_clear(opening.node.key, client, self.share, self.denied):
            if opened is None:
                opened = open_already(
                    self.files.tables, self.server.leases, opening.credential, opening.node, self.share
                )
            if opened is not None:
                return self.grant(table, client, opening, name, opened, created)
        opening.coroutine = opened_later(self.asked(opening, name), opening.credential, opening.node, opened, created)
        return 0

    cdef int grant(
        self, OpenTable table, ClientRecord client, Opening opening, opaque_t *name, OpenFile opened, bint created
    ) except -1:
        """The share reservation, and what comes with it."""
        cdef uint32_t want = self.share_access & WANT if self.minor else 0
        cdef uint32_t flags
        cdef bint reachable
        cdef OpenOwner owner
        cdef OpenState state
        try:
            owner = table.owner(client, self.owner) if self.minor else self.turn
            state = table.open_now(owner, opening.node.key, self.share, self.denied)
        except BaseException:
            opened.let_go()
            raise
        take_over(state, opened, opening.node, self.share, self.caller.credential, opening.credential.host)
        reachable = owner.confirmed and (
            backchannel_usable(client) if client.minor else self.server.callbacks.client_can_be_called(client)
        )
        flags = rflags(state, reachable)
        # A v4.0 owner that must yet confirm may be a stray retransmission's.
        given = UNCONFIRMED
        if owner.confirmed:
            given = undelegated(
                self.delegations, client, opening.node, state.access & OPEN4_SHARE_ACCESS_WRITE, want, reachable
            )
        if given is None:
            opening.coroutine = opening_delegated(self.asked(opening, name), opening.node, state, flags, patient=not created)
        else:
            opening.result = stateid_of(state.seqid, state.other), flags, given
        return 0

    cdef int through(self, Opening opening, Arguments *arguments, Place place) except -1:
        """Open the file that has been found, unless it is open by now."""
        if opening.coroutine is not None and self.begin(opening) == WAITS:
            return WAITS
        return self.store_opened(opening, arguments, place)

    # -- files that are there --------------------------------------------------------------------------------------
    cdef int open_there(
        self, uint32_t claim, opaque_t *name, const uint8_t *behind, Work brought, Arguments *arguments, Place place
    ) except -1:
        """OPEN of a file that is there: the current one, or of a name whose arguments end ``behind``."""
        cdef Node node = self.current
        cdef Opening found
        cdef uint64_t change
        cdef uint32_t status
        cdef int error = 0
        if not self.look():
            return self.open_rarely(brought, arguments, place)
        change = node.inode.change.value
        if claim == CLAIM_NULL:
            status = wrong_name(name)
            if status != NFS4_OK:
                return self.fail(status, place)
            node = self.named(name, brought, &error)
            if node is None:
                if error == 0 and brought is None and self.files.needs is not None:
                    return self.wait_for(self.files.needs, None)
                if error == ENOENT and self.files.look(self.current, &self.status):
                    return self.fail(NFS4ERR_NOENT, place)
                if error == EACCES:
                    return self.fail(NFS4ERR_ACCESS, place)
                return self.open_rarely(brought, arguments, place)
        if self.share & OPEN4_SHARE_ACCESS_WRITE and self.standing.read_only:
            return self.fail(NFS4ERR_ROFS, place)
        if node.type is not REG:
            if isinstance(brought, NameChange):
                return self.fail(NFS4ERR_EXIST, place)  # it was to be made
            # For special files too, says RFC 7530 section 16.16.5.
            status = NFS4ERR_SYMLINK if self.minor == 0 and node.type is not DIR else self.not_regular(node)
            return self.fail(status, place)
        found = opening_of(None, node, None, behind - arguments.at)
        found.credential = self.standing.credential
        found.before = found.after = change
        found.walked = isinstance(brought, Walk)
        self.open_now(found, name if claim == CLAIM_NULL else NULL, None, False)
        return self.through(found, arguments, place)

    cdef Node named(self, opaque_t *name, Work brought, int *error):
        """The file of a name in the current directory, which has been looked at."""
        cdef Node node
        if self.current.type is not DIR:
            return None
        self.files.walked = <Walk>brought if isinstance(brought, Walk) else None
        node = self.files.lookup(
            self.standing.credential, self.current, name.octets, name.length, &self.status, error, True
        )
        self.files.walked = None
        self.seen = node is not None
        return node

    # -- whatever is rare ------------------------------------------------------------------------------------------
    cdef int open_rarely(self, Work brought, Arguments *arguments, Place place) except -1:
        cdef Opening whole
        cdef int outcome
        self.files.pause()  # Python code of the server runs as the server
        args, used = opening.decode(PyMemoryView_FromMemory(<char *>arguments.at, left(arguments), PyBUF_READ))
        self.share, self.denied = opening.shares(args, self.minor)
        self.seqid, self.share_access, self.owner = args.seqid, args.share_access, args.owner.owner
        claim = args.claim.claim
        held = claim == CLAIM_DELEGATE_CUR or claim == CLAIM_DELEG_CUR_FH
        outcome = self.open_turn(claim == CLAIM_PREVIOUS, held, brought, arguments, place)
        if outcome != BEGUN:
            return outcome
        if self.pseudo is not None:
            raise Nfs4Error(opening.in_pseudo(self.pseudo, args, self.share, self.minor))
        where = Where(
            self.caller.transport, self.minor, self.current, self.standing.credential, self.stateid
        )
        whole = opening_of(opening.open_rarely(self.asked(None, NULL), where, args), None, None, used)
        whole.rare = True
        return self.through(whole, arguments, place)

    # -- the result ------------------------------------------------------------------------------------------------
    cdef int store_opened(self, Opening done, Arguments *arguments, Place place) except -1:
        """The file is open, or the OPEN has failed."""
        cdef uint32_t word
        error, done.error = done.error, None  # its traceback leads back to the errand
        if error is not None:
            raise error
        if done.rare:
            granted, target = done.result
            done.node, done.before, done.after = target.node, target.before, target.after
            for word in range(3):
                done.shown[word] = target.attrset >> 32 * word & 0xFFFFFFFF
        else:
            granted = done.result
        stateid, flags, given = granted
        place.at = store_stateid(store32(store32(place.at, OP_OPEN), NFS4_OK), stateid)
        place.at = store_change_info(place.at, done.before, done.after)
        place.at = store_mask(store32(place.at, flags), done.shown, WORDS)
        if isinstance(given, Delegation):
            place.at = store_delegation(place.at, <Delegation>given)
        else:
            place.at = store_no_delegation(place.at, self.share_access if self.minor else 0, <uint32_t>given)
        arguments.at += done.used
        if done.rare or done.change is not None:
            self.go(done.node)
        else:
            self.current = done.node  # as which it has been looked at, unless the OPEN has waited
        self.stateid = None if <uint32_t>flags & WITHOUT else stateid
        if done.change is not None:
            self.saw_change(done.node, &done.change.data.status)
        return ANSWERED

    # -- files that are made ---------------------------------------------------------------------------------------
    cdef const uint8_t *load_how(self, const uint8_t *at, const uint8_t *end, createhow_t *how):
        """A createhow4; returns what is behind it, or NULL: it is rare."""
        cdef settable_t *given = &how.given
        cdef const uint8_t *verifier
        if end - at < 4:
            return NULL
        how.mode = load32(at)
        at += 4
        memset(given.mask, 0, sizeof(given.mask))
        memset(how.shown, 0, sizeof(how.shown))
        if how.mode == UNCHECKED4 or how.mode == GUARDED4:
            at = load_given(at, end, self.minor, self.server.names, given)
            if at == NULL or given.failure or given.rare or given.size > 0:
                return NULL
        elif how.mode == EXCLUSIVE4 or (how.mode == EXCLUSIVE4_1 and self.minor):
            verifier = at
            if end - at < NFS4_VERIFIER_SIZE:
                return NULL
            at += NFS4_VERIFIER_SIZE
            if how.mode == EXCLUSIVE4:
                no_changes(&given.changes)
                given.size, given.umask, given.umask_given = -1, 0, False
            else:
                at = load_given(at, end, self.minor, self.server.names, given)
                if at == NULL or given.failure or given.rare or given.size > 0:
                    return NULL
                if given.changes.times[0].nanoseconds != UTIME_OMIT or given.changes.times[1].nanoseconds != UTIME_OMIT:
                    return NULL  # the times keep the verifier (RFC 8881 section 18.16.3)
            given.changes.times[0].seconds = load32(verifier) & VERIFIER_MASK
            given.changes.times[1].seconds = load32(verifier + 4) & VERIFIER_MASK
            given.changes.times[0].nanoseconds = given.changes.times[1].nanoseconds = 0
            how.shown[1] = TIMES
        else:
            return NULL
        if given.changes.mode < 0:
            given.changes.mode = FILE_MODE
        how.shown[0], how.shown[1], how.shown[2] = given.mask[0], how.shown[1] | given.mask[1], given.mask[2]
        return at

    cdef int open_new(
        self, createhow_t *how, opaque_t *name, const uint8_t *behind, Work brought, Arguments *arguments, Place place
    ) except -1:
        """Make the file and open it. What is there already is opened if nothing but that is asked for."""
        cdef NameChange change = begun(brought)
        cdef Opening made
        cdef uint32_t status
        cdef int outcome
        if change is None:
            status = wrong_name(name) or self.changeable()
            if status != NFS4_OK:
                return self.fail(status, place)
            if not self.may_make(self.client if self.minor else self.turn.client):
                return self.open_rarely(brought, arguments, place)
            change = self.files.to_make(
                MAKE_FILE, self.standing.credential, self.current, name.octets, name.length, &how.given.changes, 0,
                how.given.umask, True,
            )
            if change is None:
                return self.open_rarely(brought, arguments, place)
        outcome = self.carry(change, brought, place)
        if outcome == ANSWERED and self.failure == NFS4ERR_EXIST and how.mode != GUARDED4 and not self.done:
            self.failure, place.at = 0, self.result_at
            if how.mode != UNCHECKED4 or how.given.size >= 0:
                return self.open_rarely(change, arguments, place)  # it depends on what is there
            return self.open_there(CLAIM_NULL, name, behind, change, arguments, place)
        if outcome == DECLINED and not self.done:
            return self.open_rarely(change, arguments, place)
        if outcome != DONE:
            return outcome
        opened, change.opened = change.opened, None
        made = opening_of(None, change.made, change, behind - arguments.at)
        made.credential = <Credential?>change.credential
        made.before, made.after = change.change_before, change.change_after
        self.open_now(made, name, opened, True)
        memcpy(made.shown, how.shown, sizeof(made.shown))
        return self.through(made, arguments, place)

    cdef bint may_make(self, object client) except -1:
        """Whether an OPEN may make a file: nothing that can be known beforehand will refuse to open it."""
        self.files.pause()  # Python code of the server runs as the server
        if self.state.opens.refusal(client, self.owner) is not None:
            return False
        if not self.current.inline:
            return True
        mount = self.current.mount
        return self.server.service.shares.has_room(self.standing.credential.host, mount.lane)

    # -- OPEN_DOWNGRADE --------------------------------------------------------------------------------------------
    cdef int downgrade(self, Arguments *arguments, Place place) except -1:
        """OPEN_DOWNGRADE: part of the access or deny of an open is given up."""
        cdef const uint8_t *at = arguments.at
        cdef const uint8_t *behind = at + stateid4_SIZE + 12
        cdef OpenState opened
        cdef uint32_t share, denied
        cdef int outcome
        if left(arguments) < stateid4_SIZE + 12:
            return self.fail(NFS4ERR_BADXDR, place)
        if not room(place, 8 + stateid4_SIZE):
            return no(self.files, SIZE)
        self.files.pause()  # Python code of the server runs as the server
        outcome = self.take_turn(at, load32(at + stateid4_SIZE), behind, arguments, place)
        if outcome != BEGUN:
            return outcome
        opened = self.server.engine.stateids.find_open(self.given(at), self.client, self.current.key)
        share, denied = load32(at + stateid4_SIZE + 4), load32(at + stateid4_SIZE + 8)
        if self.minor:
            share &= ~WISHES
        if share < 1 or share > OPEN4_SHARE_ACCESS_BOTH or denied > OPEN4_SHARE_DENY_BOTH:
            return self.fail(NFS4ERR_INVAL, place)
        self.stateid = self.state.opens.downgrade(opened, share, denied)
        if opened.opened is not None:
            opened.opened.keep(share)
        arguments.at = behind
        place.at = store_stateid(store32(store32(place.at, OP_OPEN_DOWNGRADE), NFS4_OK), self.stateid)
        return ANSWERED
