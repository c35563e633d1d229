"""What an open or a delegation keeps open (contract: ``keeping.pyi``; RFC 7530 section 16.16.5). Owns :class:`Descriptors`."""

from nfsd.vfs.open_accounts cimport held_by, let_by
from nfsd.vfs.records cimport OpenFile
from nfsd.wire.nfs4 cimport OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE


cdef class Descriptors:
    def __init__(self, str host not None):
        self.host = host

    cpdef int add(self, OpenFile opened, int access, caller) except -1:
        if access & OPEN4_SHARE_ACCESS_READ and self.read is None:
            self.read, self.reader = held_by(opened, self.host), caller
        if access & OPEN4_SHARE_ACCESS_WRITE and self.write is None:
            self.write, self.writer = held_by(opened, self.host), caller
        opened.let_go()
        return 0

    def serving(self, caller, *, bint write):
        if write:
            return self.write if self.writer == caller else None
        return self.read if self.reader == caller else None

    cpdef int keep(self, int access) except -1:
        if not access & OPEN4_SHARE_ACCESS_READ and self.read is not None:
            let_by(self.read, self.host)
            self.read = None
        if not access & OPEN4_SHARE_ACCESS_WRITE and self.write is not None:
            let_by(self.write, self.host)
            self.write = None
        return 0

    @property
    def export_id(self):
        opened = self.write if self.read is None else self.read
        return None if opened is None else opened.node.export.id

    def copy(self):
        cdef Descriptors made = Descriptors(self.host)
        made.read, made.reader, made.write, made.writer = self.read, self.reader, self.write, self.writer
        for opened in (made.read, made.write):
            if opened is not None:
                held_by(opened, self.host)
        return made

    def release(self):
        self.keep(0)
