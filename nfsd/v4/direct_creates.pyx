"""OPEN that creates, in native COMPOUNDs (RFC 8881 section 18.16; RFC 7530 section 16.16).

Owns the decoding and encoding; what they do is in :mod:`nfsd.vfs.direct_names`, and in :mod:`nfsd.v4.at_once` for the state
of an open. Imports that and :mod:`nfsd.v4.name_changes`.

An OPEN looks at what can refuse it before it makes a file. Then the file is there and stays open, so that opening it takes
the share reservation and nothing else. In NFSv4.0 its owner's seqid has begun before (RFC 7530 section 9.1.7), and the
owner is busy for as long as the OPEN waits.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from nfsd.state.records cimport Delegation
from nfsd.v4.direct_changes cimport store_change_info, wrong_name
from nfsd.v4.direct_compound cimport room
from nfsd.v4.direct_opens cimport store_no_delegation
from nfsd.v4.fattr cimport WORDS, store_mask
from nfsd.v4.given cimport load_given
from nfsd.v4.name_changes cimport DONE, begun
from nfsd.vfs.direct cimport NAME_MAX, UTIME_OMIT, no, no_changes
from nfsd.vfs.name_changes cimport MAKE_FILE, NameChange
from nfsd.vfs.records cimport Credential, Node
from nfsd.wire.nfs4 cimport (
    CLAIM_NULL, EXCLUSIVE4, EXCLUSIVE4_1, FATTR4_TIME_ACCESS, FATTR4_TIME_MODIFY, GUARDED4,
    NFS4ERR_EXIST, NFS4_OK, NFS4_VERIFIER_SIZE, NFS_LIMIT_SIZE, OPEN4_SHARE_ACCESS_READ,
    OPEN_DELEGATE_READ, OPEN_DELEGATE_WRITE, OP_OPEN, UNCHECKED4, change_info4_SIZE, stateid4_SIZE,
)
from rpcrdma.declined cimport ATTRIBUTES, FAILED, OPEN, PROCEDURE, SIZE, STATE
from rpcrdma.octets cimport load_opaque, opaque_t
from rpcrdma.place cimport ANSWERED, DECLINED, WAITS, load32, store32, store64
from rpcrdma.rpc.work cimport Work

from nfsd.v4 import at_once

cdef enum:
    BITMAP_SIZE = 16
    DELEGATION = 4 + stateid4_SIZE + 4 + 12 + 16    # at most: of a write delegation
    OPEN_RESULT = 8 + stateid4_SIZE + change_info4_SIZE + 4 + BITMAP_SIZE + DELEGATION
    VERIFIER_MASK = 0x7FFFFFFF  # nfsd.vfs.creation
    FILE_MODE = 0o600           # without one, as there
    # In the second word.
    TIMES = 1 << (FATTR4_TIME_ACCESS - 32) | 1 << (FATTR4_TIME_MODIFY - 32)


cdef uint8_t *store_delegation(uint8_t *at, Delegation given) except NULL:
    """The open_delegation4 of a delegation (:func:`nfsd.v4.ops.delegations.given`)."""
    cdef bytes other = given.other
    at = store32(at, OPEN_DELEGATE_WRITE if given.write else OPEN_DELEGATE_READ)
    memcpy(store32(at, given.seqid), <const uint8_t *>other, stateid4_SIZE - 4)
    at = store32(at + stateid4_SIZE, given.recall_by is not None)
    if given.write:
        # No space is reserved for what the client caches.
        at = store64(store32(at, NFS_LIMIT_SIZE), <uint64_t>0xFFFFFFFFFFFFFFFF)
    # An nfsace4 that allows nobody anything: ACCESS_ALLOWED, no flags, no access, no name.
    memset(at, 0, 16)
    return at + 16


cdef class DirectCreates(NameChanges):
    cdef int open_new(self, Arguments *arguments, const uint8_t *how, uint32_t wanted, Place place) except -1:
        cdef createhow_t creation
        cdef opaque_t name
        cdef const uint8_t *at = self.load_how(how, arguments.end, &creation)
        cdef int outcome
        if at == NULL:
            return no(self.files, ATTRIBUTES)
        if arguments.end - at < 4 or load32(at) != CLAIM_NULL:
            return no(self.files, PROCEDURE)
        at = load_opaque(at + 4, arguments.end, NAME_MAX, &name)
        if at == NULL:
            return DECLINED
        outcome = self.make_and_open(arguments, &creation, &name, at, wanted, place)
        if self.turn is not None and outcome != WAITS:
            if outcome == ANSWERED:
                self.recorded(self.turn, self.failure, place, self.current.handle)
            else:
                self.turn.abandon()
            self.turn = None
        return outcome

    cdef const uint8_t *load_how(self, const uint8_t *at, const uint8_t *end, createhow_t *how):
        """A createhow4; returns what is behind it, or NULL: it is for the general path."""
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

    cdef int make_and_open(
        self, Arguments *arguments, createhow_t *how, opaque_t *name, const uint8_t *behind, uint32_t wanted, Place place
    ) except -1:
        """Make the file and open it; what is there already is for the general path, or has the name."""
        cdef Work brought = self.brought_here()
        cdef NameChange change = begun(brought)
        cdef uint32_t status
        cdef int outcome
        if change is None:
            if not room(place, OPEN_RESULT):
                return no(self.files, SIZE)
            if wrong_name(name) or self.changeable():
                return no(self.files, FAILED)
            change = self.to_open_new(arguments, how, name, wanted)
            if change is None:
                return DECLINED
        outcome = self.carry(change, brought, place)
        if outcome == ANSWERED and self.failure == NFS4ERR_EXIST and how.mode != GUARDED4 and not self.done:
            self.failure, place.at = 0, self.result_at
            if how.mode != UNCHECKED4 or how.given.size >= 0:
                return no(self.files, FAILED)  # it depends on what is there
            return self.open_instead(arguments, name, wanted, place)
        if outcome != DONE:
            return outcome
        arguments.at = behind
        return self.opened_new(change, how, wanted, place)

    cdef bint open_instead(self, Arguments *arguments, opaque_t *name, uint32_t wanted, Place place) except -1:
        """UNCHECKED4, and the name is taken: what is there is opened, and keeps its attributes."""
        client = self.opener_of(arguments.at + 12) if self.turn is None else self.turn.client
        if self.turn is not None:
            self.turn.abandon()  # it begins again
            self.turn = None
        arguments.at = name.octets - 4
        return client is not None and self.open_there(arguments, client, CLAIM_NULL, wanted, place)

    cdef NameChange to_open_new(self, Arguments *arguments, createhow_t *how, opaque_t *name, uint32_t wanted):
        """The creation of a file to be opened; None declines, as long as nothing has begun."""
        cdef Credential credential = self.standing.credential
        cdef NameChange change
        client = self.opener_of(arguments.at + 12)
        if client is None or not at_once.may_make(self.server, client, self.owner, credential.host, self.current):
            self.files.why = STATE
            return None
        if self.share == OPEN4_SHARE_ACCESS_READ and self.server.leases:
            self.files.why = OPEN  # what is open for reading only may be delegated: another descriptor is needed
            return None
        if not self.minor:
            self.turn = at_once.begin(self.server, client, self.owner, self.seqid)
        change = self.files.to_make(
            MAKE_FILE, credential, self.current, name.octets, name.length, &how.given.changes, 0, how.given.umask, True
        )
        if change is not None and not self.minor:
            self.opened_by = client
        return change

    cdef tuple request(self):
        """The session, slot and sequence id of the COMPOUND."""
        return self.session.sessionid, self.slotid, self.slot.seqid

    cdef int opened_new(self, NameChange change, createhow_t *how, uint32_t wanted, Place place) except -1:
        """The file is there: open it, and answer."""
        cdef Node node = change.made
        cdef bytes other
        cdef object done, given
        opened, change.opened = change.opened, None
        client = self.client
        if client is None:
            client = self.opened_by = self.turn.client
        self.files.pause()  # Python code of the file service runs as the server
        done = at_once.open_made(
            self.server, client, self.caller.credential, change.credential, node, opened, self.owner, self.share,
            self.denied, wanted if self.minor else 0, None if self.session is None else self.request(),
        )
        if isinstance(done, int):
            return self.fail(<uint32_t>done, place)
        state, flags, given = done
        other = state.other
        place.at = store32(store32(store32(place.at, OP_OPEN), NFS4_OK), state.seqid)
        memcpy(place.at, <const uint8_t *>other, stateid4_SIZE - 4)
        place.at = store_change_info(place.at + stateid4_SIZE - 4, change.change_before, change.change_after)
        place.at = store_mask(store32(place.at, flags), how.shown, WORDS)
        if isinstance(given, Delegation):
            place.at = store_delegation(place.at, <Delegation>given)
        else:
            place.at = store_no_delegation(place.at, wanted, <uint32_t>given)
        self.go(node)
        self.stateid = state.stateid
        self.saw_change(node, &change.data.status)
        return ANSWERED
