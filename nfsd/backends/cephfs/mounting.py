"""Mounting a CephFS file system: the options of an export, and what is said when it cannot be mounted.

Owns the names of sessions that this process has; imports the extension.
"""

from __future__ import annotations

import errno
import functools
import os
import threading
from dataclasses import dataclass
from typing import Final

from nfsd.backends.cephfs.client import Client

_OPTIONS: Final = {
    # Every call is checked as its caller, ACLs included, by the library and not by whoever calls it.
    b"client_permissions": b"true",
    b"fuse_default_permissions": b"false",
    b"client_acl_type": b"posix_acl",
    # A directory's size is of its own names. Of all that is below, it would move without the change attribute.
    b"client_dirsize_rbytes": b"false",
    b"client_mount_timeout": b"20",
}
TALKATIVE: Final = (b"debug_client", b"debug_objectcacher", b"debug_objecter", b"debug_finisher", b"debug_ms")
"""What the library notes of each call, in memory, in case it crashes: that takes longer than many a call does."""
_THREADS_MOST: Final = 256

_names: dict[str, Client] = {}
"""Names of sessions, and whose they are here: one must not be taken from a mount of our own, which may still have data
in memory, as after a reload with other options."""
_naming = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of an export with ``backend: cephfs``. Raises TypeError or ValueError."""

    config: str = "/etc/ceph/ceph.conf"
    """Where the monitors are."""
    name: str = "admin"
    """Whose key is used, without ``client.``"""
    keyring: str | None = None
    """The file that has it; None: where the configuration says."""
    filesystem: str | None = None
    """None: the cluster's only or default one."""
    root: str = "/"
    """The directory that is served."""
    gateway: str | None = None
    """What this server is called in the cluster, where no other may have the name."""
    threads: int = 16
    """Calls that may wait for the cluster at the same time."""

    def __post_init__(self) -> None:
        for name in ("config", "name", "keyring", "filesystem", "root", "gateway"):
            value = getattr(self, name)
            if value is None and name in ("keyring", "filesystem", "gateway"):
                continue
            if not isinstance(value, str) or not value or "\0" in value:
                raise ValueError(f"{name} must be a text, not {value!r}")
        for name in ("config", "keyring", "root"):
            value = getattr(self, name)
            if value is not None and not value.startswith("/"):
                raise ValueError(f"{name} must be an absolute path, not {value!r}")
        if type(self.threads) is not int or not 1 <= self.threads <= _THREADS_MOST:
            raise ValueError(f"threads must be a number from 1 to {_THREADS_MOST}, not {self.threads!r}")


def mounted(settings: Settings) -> Client:
    """The file system. Waits for the cluster, 20 seconds for what does not answer. Raises OSError, which says what is
    wrong."""
    _check_readable("config", settings.config)
    if settings.keyring is not None:
        _check_readable("keyring", settings.keyring)
    client = Client(os.fsencode(settings.name))
    levels = {option: client.configured(option) for option in TALKATIVE}
    try:
        _configure(client, settings)
        _begin(client, settings)
        _calm(client, levels)
    except BaseException:
        unmount(client)
        raise
    return client


def unmount(client: Client) -> None:
    """Give a mount back, which nobody uses any more but workers. Waits for the cluster."""
    if not client.end(functools.partial(unmount, client)):
        return  # it has its name until then
    with _naming:
        for name in [name for name, owner in _names.items() if owner is client]:
            del _names[name]


def _configure(client: Client, settings: Settings) -> None:
    try:
        client.read_configuration(os.fsencode(settings.config))
    except OSError as error:
        raise _worse(error, f"config: {settings.config} is no configuration of Ceph's") from None
    if settings.keyring is not None:
        client.configure(b"keyring", os.fsencode(settings.keyring))
    for option, value in _OPTIONS.items():
        client.configure(option, value)
    try:
        client.start()
    except OSError as error:
        raise _worse(error, _why_no_start(error, settings)) from None


def _begin(client: Client, settings: Settings) -> None:
    try:
        if settings.filesystem is not None:
            client.select(os.fsencode(settings.filesystem))
        if settings.gateway is not None:
            name = f"rdma-nfsd:{settings.gateway}:{settings.filesystem or ''}:{settings.root}"
            with _naming:
                is_ours = _names.setdefault(name, client) is client
            if is_ours:
                client.take_over(os.fsencode(name))
        client.begin(os.fsencode(settings.root))
    except OSError as error:
        raise _worse(error, _why(error, settings)) from None


def _calm(client: Client, levels: dict[bytes, bytes]) -> None:
    """Have it take no notes where the configuration, which may be the cluster's, says the same ``levels`` as the
    library."""
    for option, level in levels.items():
        if client.configured(option) == level:
            client.configure(option, b"0/0")


def _why_no_start(error: OSError, settings: Settings) -> str:
    """What it means that the cluster cannot be reached."""
    who = f"client.{settings.name}"
    if error.errno == errno.ETIMEDOUT:
        return f"config: no monitor of {settings.config} answers"
    if error.errno == errno.ENOENT:
        return f"name, keyring: there is no key of {who} in {settings.keyring or 'a keyring of ' + settings.config}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"name, keyring: the cluster does not take the key of {who}"
    return f"config: {settings.config} does not lead to a cluster"


def _why(error: OSError, settings: Settings) -> str:
    """What it means that a file system cannot be mounted."""
    who = f"client.{settings.name}"
    file_system = "a file system" if settings.filesystem is None else f"the file system {settings.filesystem!r}"
    if error.errno == errno.ETIMEDOUT:
        return f"no metadata server of the cluster of {settings.config} answers"
    if error.errno == errno.ENOENT:
        if settings.root != "/":
            return f"filesystem, root: the cluster has not {file_system}, or that has not {settings.root}"
        return f"filesystem: the cluster has not {file_system}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"name, root: the key of {who} does not let it into {settings.root} of {file_system}"
    return f"{who} cannot mount {settings.root} of {file_system}"


def _worse(error: OSError, message: str) -> OSError:
    return OSError(error.errno or errno.EIO, f"{message} ({error.strerror})")


def _check_readable(key: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise OSError(error.errno, f"{key}: {path}: {error.strerror}") from None


def identity_of(client: Client, root: bytes) -> bytes:
    """What the file system is called: the same for all who mount any directory of it."""
    try:
        cluster = client.get_xattr(None, root, b"ceph.cluster_fsid")
    except OSError:  # an older library
        cluster = client.configured(b"fsid") + client.configured(b"mon_host")
    return b"cephfs:%s:%d" % (cluster, client.file_system())
