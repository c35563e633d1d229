"""The object of a pool that has the records of one server, and what others may ask of it.

Owns the object's format: its key-value pairs are the instance, the clients on record, the key of file handles, and what
NFSv4 clients know the server by. Imports the engine's records and the state directory.
"""

from __future__ import annotations

import hashlib
import json
import socket
from typing import TYPE_CHECKING, Any, Final

from nfsd import state_dir
from nfsd.config_stable import RadosPool
from nfsd.state.recovery import ClientRecord, StoreWrite

if TYPE_CHECKING:
    from nfsd.stable.rados.client import Cluster, Locker

FORMAT: Final = 1
INSTANCE: Final = b"instance"
CLIENT: Final = b"client."
LOCK: Final = b"rdma-nfsd"
"""The lock that a server has on its object."""
LOCK_SECONDS: Final = 60
"""How long a lock outlives its last renewal, and a server the last sign that it has it."""
HOLDER: Final = b"holder"
"""The attribute of the object that says who changes it."""


def object_of(name: str) -> bytes:
    """What the object of a server is called."""
    return f"server.{name}".encode()


def place_of(pool: RadosPool, name: str) -> str:
    """Where that is, in words."""
    return f"rados:{pool.pool}/{pool.namespace}/server.{name}"


def key_of(minor: int, owner: bytes, principal: str) -> bytes:
    """Of a client on record. Its names may be longer than keys, and have any octets in them."""
    whole = json.dumps([minor, owner.hex(), principal]).encode()
    return CLIENT + hashlib.sha256(whole).hexdigest().encode()


def client_pair(record: StoreWrite) -> bytes:
    """The value of a client on record."""
    value = {"minor": record.minor, "owner": record.owner.hex(), "principal": record.principal, "epoch": record.epoch}
    return json.dumps(value).encode()


def record_of(value: bytes) -> ClientRecord:
    """The client that a value stands for."""
    found = json.loads(value)
    return ClientRecord(found["minor"], bytes.fromhex(found["owner"]), found["principal"], found["epoch"])


def instance_pair(epoch: int, lease: float) -> bytes:
    """The value of the instance."""
    return json.dumps({"format": FORMAT, "epoch": epoch, "lease": lease}).encode()


# -- who has it ------------------------------------------------------------------------------------------------------
def cookie_of(directory: str) -> bytes:
    """What the host of a state directory calls itself in locks. Raises OSError."""
    return socket.gethostname().encode() + b":" + state_dir.holder(directory)


def same_holder(one: bytes, other: bytes) -> bool:
    """Whether two cookies are of the same state directory, whatever its host is called."""
    return one.rpartition(b":")[2] == other.rpartition(b":")[2]


def host_of(holder: Locker) -> str:
    """Who has a lock, in words."""
    return f"{holder.cookie.rpartition(b':')[0].decode(errors='replace')} ({holder.address.decode()})"


# -- of other servers ------------------------------------------------------------------------------------------------
def is_locked(cluster: Cluster, name: str) -> bool:
    """Whether a server of that name lives, or may still."""
    return bool(cluster.lockers(object_of(name), LOCK))


def has_clients(cluster: Cluster, name: str) -> bool:
    """Whether a server has clients on record."""
    return any(key.startswith(CLIENT) for key in cluster.pairs(object_of(name)))


def lease(cluster: Cluster, name: str) -> float:
    """The seconds that a server's clients may take to notice that it is back."""
    pairs = cluster.pairs(object_of(name))
    instance: dict[str, Any] = json.loads(pairs[INSTANCE]) if INSTANCE in pairs else {}
    return float(instance.get("lease", 0.0))
