"""What of the configuration is about stable storage. Owns the declarations, and what goes together with what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field, StrictStr

_STRICT: Final = ConfigDict(extra="forbid", allow_inf_nan=False)
_Path = Annotated[StrictStr, Field(pattern=r"^/")]
_Text = Annotated[StrictStr, Field(min_length=1)]
ServerName = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _kind(value: Any) -> Any:
    """``sqlite`` is the one in the state directory."""
    if value == "sqlite":
        return {}
    if isinstance(value, str) or value == {}:
        raise ValueError("is no stable storage; write sqlite, or a mapping with rados")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RadosPool:
    """Objects in a pool of a Ceph cluster."""

    __pydantic_config__ = _STRICT

    config: _Path = "/etc/ceph/ceph.conf"
    """Where the monitors are."""
    user: _Text = "admin"
    """Whose key is used, without ``client.``"""
    pool: _Text
    namespace: StrictStr = "rdma-nfsd"
    """Servers of one namespace have their grace periods together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StableStorage:
    """Where records are kept that outlive the server. In the file ``sqlite`` stands for nothing of this."""

    __pydantic_config__ = _STRICT

    rados: RadosPool | None = None
    """None: SQLite, in ``state_dir``."""


Stable = Annotated[StableStorage, BeforeValidator(_kind)]


def problems_of_stable_storage(stable: StableStorage, name: str | None, processes: int) -> Iterator[tuple[str, str]]:
    """Keys of ``server``, and what is wrong with them. ``name``: the server's. ``processes``: how many there are to
    be."""
    if stable.rados is None:
        return
    if name is None:
        yield "stable_storage", "keeps the records of many servers; say which this is with server.name"
    if processes != 1:
        yield "stable_storage", "in RADOS is for one process only; set server.processes to 1"
