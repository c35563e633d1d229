"""Every bound and period of the state engine, in one frozen record; imports nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients may make the server remember, and the periods of leases and grace (seconds)."""

    lease: float = 90.0
    """Lease time, told to clients as the lease_time attribute (whole seconds)."""
    grace: float = 90.0
    """Length of the grace period after a restart; at least the lease time of the instance before."""
    courtesy: float = 86400.0
    """How long an expired client's state is kept while nobody else wants what it holds; 0: not at all."""
    octets: int = 1 << 30
    """Memory of all records of all clients, by estimate (:mod:`nfsd.state.accounts`); replies kept are apart."""
    host_share: int = 25
    """Percent of ``octets``, ``clients``, ``all_cached_octets``, ``delegations``, ``copies`` and ``waiters`` that the
    clients of one host may have together."""
    clients: int = 10000
    """Client records, confirmed and not, of all minor versions."""
    unconfirmed_clients: int = 1000
    """Of these, records never confirmed; the oldest of the host with most gives way to a new one."""
    owner_octets: int = 1024
    """Longest client, open-owner and lock-owner name (NFS4_OPAQUE_LIMIT)."""

    sessions: int = 64
    """Sessions of one client."""
    slots: int = 256
    """Slots of one session's fore channel."""
    backchannel_slots: int = 16
    """Slots of one session's backchannel that are ever used."""
    connections: int = 64
    """Connections bound to one session."""
    request_octets: int = 1048576 + 8192
    """ca_maxrequestsize granted at most."""
    response_octets: int = 1048576 + 8192
    """ca_maxresponsesize granted at most."""
    cached_reply_octets: int = 8192
    """ca_maxresponsesize_cached granted at most; one slot's cached reply is never longer."""
    client_cached_octets: int = 8 * 1048576
    """Slots times cached reply size, over all sessions of one client; fewer slots are granted beyond."""
    all_cached_octets: int = 256 * 1048576
    """The same over all clients; sessions with many slots are asked for some of them when it runs short."""
    operations: int = 128
    """ca_maxoperations granted at most."""
    minimum_channel_octets: int = 128
    """A channel whose requests or responses must be shorter is refused (NFS4ERR_TOOSMALL)."""

    opens: int = 100000
    """Open states of one client."""
    open_owners: int = 100000
    """Open owners of one client."""
    lock_owners: int = 100000
    """Lock owners of one client."""
    lock_states: int = 100000
    """Lock stateids of one client."""
    locks: int = 1000000
    """Locked ranges (after merging) of one client."""
    delegations: int = 20000
    """Delegations of all clients together; 0: none are given."""
    client_delegations: int = 5000
    """Delegations of one client."""
    recall: float | None = None
    """How long a recalled delegation may take to come back before it is revoked; None: the lease time."""
    delegation_pause: float = 30.0
    """How long a file is not delegated again after its delegation was recalled."""
    waiters: int = 1000
    """Blocked lock requests remembered for one file."""
    client_waiters: int = 1000
    """Blocked lock requests remembered of one client."""
    client_copies: int = 16
    """Asynchronous copies of one client, those over and not yet acknowledged included."""
    copies: int = 128
    """Asynchronous copies of all clients."""
    seqid_reply_octets: int = 2048
    """Longest result kept for the replay of a v4.0 seqid operation."""

    def share(self, whole: int, least: int = 16) -> int:
        """One host's share of one of the bounds on all; never less than ``least``, as far as there is so much."""
        return max(whole * self.host_share // 100, min(whole, least))
