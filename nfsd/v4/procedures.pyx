"""The operations of COMPOUNDs that have a native body (RFC 8881 section 18, RFC 7530 section 16).

Owns :class:`Nfs4Procedures`, which leads to each; imports :mod:`nfsd.v4.filehandles`. SEQUENCE is :mod:`nfsd.v4.sequence`'s, all others are
:mod:`nfsd.v4.ops`'.
"""

from libc.stdint cimport uint32_t

from nfsd.v4.native_compound cimport Arguments
from nfsd.v4.filehandles cimport FileHandles
from nfsd.wire.nfs4 cimport (
    OP_ACCESS, OP_CLOSE, OP_COMMIT, OP_CREATE, OP_DELEGRETURN, OP_GETATTR, OP_GETFH, OP_GET_DIR_DELEGATION, OP_LINK, OP_LOCK,
    OP_LOCKU, OP_LOOKUP, OP_OPEN, OP_OPEN_CONFIRM, OP_OPEN_DOWNGRADE, OP_PUTFH, OP_PUTPUBFH, OP_PUTROOTFH, OP_READ, OP_READDIR,
    OP_REMOVE, OP_RENAME, OP_RENEW, OP_RESTOREFH, OP_SAVEFH, OP_SEQUENCE, OP_SETATTR, OP_WRITE,
)
from rpcrdma.place cimport Place

import nfsd.v4.ops  # fills the table of operations


cdef class Nfs4Procedures(FileHandles):
    cdef int operation(self, uint32_t number, Arguments *arguments, Place place) except -1:
        if number == OP_PUTFH:
            return self.putfh(arguments, place)
        if number == OP_SEQUENCE:
            return self.sequence(arguments, place)
        if number == OP_RENEW:
            return self.renew(arguments, place)
        if number == OP_RESTOREFH:
            return self.restorefh(arguments, place)
        if number == OP_PUTROOTFH or number == OP_PUTPUBFH:
            return self.putrootfh(number, arguments, place)
        if self.current is None:
            return self.nowhere(number, arguments, place)
        if number == OP_GETATTR:
            return self.getattr(arguments, place)
        if number == OP_READ:
            return self.read(arguments, place)
        if number == OP_WRITE:
            return self.write(arguments, place)
        if number == OP_LOOKUP:
            return self.lookup(arguments, place)
        if number == OP_ACCESS:
            return self.access(arguments, place)
        if number == OP_GETFH:
            return self.getfh(place)
        if number == OP_COMMIT:
            return self.commit(arguments, place)
        if (
            number == OP_OPEN or number == OP_CLOSE or number == OP_LOCK or number == OP_LOCKU or number == OP_OPEN_CONFIRM
            or number == OP_OPEN_DOWNGRADE or number == OP_DELEGRETURN or number == OP_GET_DIR_DELEGATION
        ):
            return self.owned(number, arguments, place)
        if number == OP_REMOVE:
            return self.remove(arguments, place)
        if number == OP_SETATTR:
            return self.setattr(arguments, place)
        if number == OP_CREATE:
            return self.create(arguments, place)
        if number == OP_RENAME:
            return self.rename(arguments, place)
        if number == OP_READDIR:
            return self.readdir(arguments, place)
        if number == OP_LINK:
            return self.link(arguments, place)
        if number == OP_SAVEFH:
            return self.savefh(place)
        raise NotImplementedError
