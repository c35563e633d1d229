"""What the engine knows of one file: who has it open how, and its locks (contract: ``files.pyi``).

Imports nothing. Share counters follow RFC 8881 section 9.7.
"""

from nfsd.wire.nfs4 cimport OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE

cdef set _NOBODY = set()
cdef dict _NO_HOSTS = {}
# These stay empty.


cdef class FileState:
    def __init__(self, bytes key not None):
        self.key = key
        self.gate = None
        self.node = None
        self.opens = set()
        self.reservations = _NOBODY  # a set of its own only while there are some: files that are open are many
        self.access_read = self.access_write = self.deny_read = self.deny_write = 0
        self.locks = None
        self.lock_hosts = _NO_HOSTS  # like these
        self.departed = ()
        self.pending_lock = None
        self.dirty = []
        self.waiters = []
        self.delegations = {}

    def add_reservation(self, reservation):
        if self.reservations is _NOBODY:
            self.reservations = set()
        self.reservations.add(reservation)

    def drop_reservation(self, reservation):
        self.reservations.discard(reservation)
        if not self.reservations:
            self.reservations = _NOBODY

    def lock_owner_came(self, str host not None):
        if self.lock_hosts is _NO_HOSTS:
            self.lock_hosts = {}
        self.lock_hosts[host] = self.lock_hosts.get(host, 0) + 1

    def lock_owner_left(self, str host not None):
        self.lock_hosts[host] -= 1
        if not self.lock_hosts[host]:
            del self.lock_hosts[host]
            self.departed = (*(one for one in self.departed if one != host), host)
        if not self.lock_hosts:
            self.lock_hosts = _NO_HOSTS

    cpdef void add_share(self, int access, int deny) noexcept:
        self.access_read += access & OPEN4_SHARE_ACCESS_READ != 0
        self.access_write += access & OPEN4_SHARE_ACCESS_WRITE != 0
        self.deny_read += deny & OPEN4_SHARE_ACCESS_READ != 0
        self.deny_write += deny & OPEN4_SHARE_ACCESS_WRITE != 0

    cpdef void drop_share(self, int access, int deny) noexcept:
        self.access_read -= access & OPEN4_SHARE_ACCESS_READ != 0
        self.access_write -= access & OPEN4_SHARE_ACCESS_WRITE != 0
        self.deny_read -= deny & OPEN4_SHARE_ACCESS_READ != 0
        self.deny_write -= deny & OPEN4_SHARE_ACCESS_WRITE != 0

    cdef bint stands_against(self, int access, int deny) noexcept:
        """Whether somebody's access or deny conflicts with these."""
        return (
            (access & OPEN4_SHARE_ACCESS_READ and self.deny_read)
            or (access & OPEN4_SHARE_ACCESS_WRITE and self.deny_write)
            or (deny & OPEN4_SHARE_ACCESS_READ and self.access_read)
            or (deny & OPEN4_SHARE_ACCESS_WRITE and self.access_write)
        ) != 0

    cdef bint is_idle(self) noexcept:
        return not (
            self.opens or self.reservations or self.dirty or self.pending_lock is not None or self.delegations
            or self.waiters
        )

    cdef bint is_gated(self) except -1:
        """Whether the layer above has its gate closed."""
        return self.gate is not None and self.gate.locked()

    @property
    def idle(self):
        return self.is_idle()
