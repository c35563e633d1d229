"""Objects of a pool, by Ceph's own library. Implemented in ``client.pyx``.

Every method waits for the cluster. OSError has the library's number, and ETIMEDOUT after the time that was configured.
"""

from typing import NamedTuple

class Locker(NamedTuple):
    """Who has a lock."""

    client: bytes
    """The cluster's name for the connection."""
    cookie: bytes
    address: bytes

class Cluster:
    """A connection to a cluster, and to one pool of it."""

    def __init__(self, name: bytes) -> None:
        """``name``: whose key is used, without ``client.``"""
    def read_configuration(self, path: bytes) -> None:
        """Read a file of Ceph's configuration."""
    def configure(self, option: bytes, value: bytes) -> None:
        """Set one of Ceph's options."""
    def connect(self) -> None:
        """Connect to the cluster."""
    def open(self, pool: bytes, namespace: bytes) -> None:
        """Choose the objects."""
    def end(self) -> None:
        """Disconnect. Whatever comes afterwards raises ENOTCONN."""
    # -- objects
    def attribute(self, name: bytes, key: bytes) -> bytes:
        """An attribute of an object; empty: there is none, or no such object."""
    def pairs(self, name: bytes) -> dict[bytes, bytes]:
        """All key-value pairs of an object."""
    def change(
        self,
        name: bytes,
        guard: tuple[bytes, bytes] | None,
        attributes: dict[bytes, bytes],
        pairs: dict[bytes, bytes],
        gone: list[bytes],
    ) -> None:
        """In one step: set attributes and pairs, and remove the pairs of the keys ``gone``; make the object if there is
        none. ``guard``: an attribute, and the value that it must have, else ECANCELED and nothing is changed."""
    # -- locks
    def lock(self, name: bytes, lock: bytes, cookie: bytes, who: bytes, seconds: int) -> None:
        """Take or renew a lock on an object, for so long. EBUSY: somebody else has it."""
    def unlock(self, name: bytes, lock: bytes, cookie: bytes) -> None:
        """Give it back."""
    def break_lock(self, name: bytes, lock: bytes, holder: Locker) -> None:
        """Take it from the one who has it."""
    def lockers(self, name: bytes, lock: bytes) -> list[Locker]:
        """Who has it."""
