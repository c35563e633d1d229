"""What each host makes the server remember, in octets (contract: ``charges.pyi``).

Owns the records; whose account it is, and who gives way when room runs short, is in :mod:`nfsd.state.accounts`. Everything that
a client opens and closes is charged here, so this is part of those operations.
"""

from rpcrdma.parts cimport Part


cdef class Figures:
    def __init__(self, long long share, long long easy):
        self.octets = 0
        self.share, self.easy = share, easy

    cdef bint is_easy(self, HostAccount account, long long octets) noexcept:
        """Whether so much more may be remembered for a host without a closer look."""
        return account.octets + octets <= self.share and self.octets + octets <= self.easy


cdef class HostAccount:
    def __init__(self, Figures ledger not None, str host not None):
        self.ledger = ledger
        self.host = host
        self.address = host.removesuffix("!")
        self.networks = tuple((<object>ledger).networks.of(self.address).chain()[:0:-1])
        self.octets = 0
        self.clients = {}
        self.delegations = self.copies = 0
        self.cached_octets = 0
        self.relieved = float("-inf")

    cpdef int charge(self, long long octets) except -1:
        cdef Part network
        self.octets += octets
        self.ledger.octets += octets
        for network in self.networks:
            network.has += octets
        return 0

    @property
    def left(self):
        return (<object>self.ledger).left(self)
