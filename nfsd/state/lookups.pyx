"""What native COMPOUNDs ask the state engine (RFC 8881 sections 8.2, 9.1; RFC 7530 section 9.1).

Owns nothing: it works on the tables and records of the engine. Each function gives what the one it names gives when
nothing is out of the ordinary, and None otherwise, having changed nothing; then the general path asks that one.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t

from nfsd.state.owners cimport OpenOwner
from nfsd.state.records cimport ClientRecord, Delegation, LockState, OpenState, StateEntry
from nfsd.wire.nfs4 cimport NFS4_OTHER_SIZE, OPEN4_SHARE_ACCESS_WRITE
from rpcrdma.octets cimport load32


cdef class StateLookups:
    def __init__(self, engine):
        self.engine = engine
        self.entries = engine.stateids.entries
        self.opens = engine.opens

    cdef StateEntry current(self, ClientRecord client, const uint8_t *stateid, bytes file_key):
        """What :meth:`StateidTable.find` gives, if it is of this file. ``client`` is the session's; None in NFSv4.0, where
        the stateid tells the client, whose lease begins anew. Special stateids are in no table."""
        cdef uint32_t seqid = load32(stateid)
        cdef StateEntry entry = self.entries.get(PyBytes_FromStringAndSize(<char *>stateid + 4, NFS4_OTHER_SIZE))
        cdef ClientRecord holder
        if entry is None or entry.status or entry.file is None or entry.file.key != file_key:
            return None
        if client is not None:
            return entry if entry.client is client and (seqid == entry.seqid or seqid == 0) else None
        holder = <ClientRecord?>entry.client
        if holder.minor or seqid != entry.seqid or holder.courtesy or holder.unheard:
            return None
        ClientRecord.renew(holder)
        return entry

    cdef object opened_of(self, ClientRecord client, const uint8_t *stateid, bytes file_key, bint write):
        """What the open or delegation of a stateid has open (its descriptors), where :meth:`StateidTable.check_io`
        would let a READ or WRITE pass."""
        cdef StateEntry entry = self.current(client, stateid, file_key)
        cdef OpenState opened
        if entry is None:
            return None
        if entry.kind == 3:
            if write and not (<Delegation?>entry).write:
                return None
            return (<Delegation?>entry).opened
        if entry.kind == 1:
            opened = <OpenState?>entry
        elif entry.kind == 2:
            opened = (<LockState?>entry).open_state
        else:
            return None
        if client is None and not (<OpenOwner?>opened.owner).confirmed:
            return None  # in 4.1 there is nothing to confirm (RFC 8881 section 18.16.3)
        if write and not opened.access & OPEN4_SHARE_ACCESS_WRITE:
            return None
        return opened.opened

    cdef OpenState open_of(self, ClientRecord client, const uint8_t *stateid, bytes file_key):
        """What :meth:`StateidTable.find_open` gives."""
        cdef StateEntry entry = self.current(client, stateid, file_key)
        return None if entry is None or entry.kind != 1 else <OpenState?>entry
