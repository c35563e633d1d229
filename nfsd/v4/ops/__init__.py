"""The operations of NFSv4, a module for each family; importing this package fills the table."""

from nfsd.v4.ops import (
    attributes,
    clients,
    copy,
    data,
    delegations,
    files,
    locks,
    sessions,
    sparse,
    xattrs,
)

__all__ = [
    "attributes",
    "clients",
    "copy",
    "data",
    "delegations",
    "files",
    "locks",
    "sessions",
    "sparse",
    "xattrs",
]
