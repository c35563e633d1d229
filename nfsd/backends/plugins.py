"""Finding the store that an export names: a built-in one, an installed plug-in's, or any factory in Python.

Owns nothing. Plug-ins are entry points of the group ``rdma_nfsd.backends``. A factory is called with the export's
``options`` as keywords, and returns a :class:`~nfsd.backends.simple.SimpleBackend`, or what is a
:class:`~nfsd.backends.interface.Store` itself.
"""

from __future__ import annotations

import errno
import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final, cast

from nfsd.backends.interface import Store
from nfsd.backends.keyed import KeyedStore
from nfsd.backends.simple import SimpleBackend
from nfsd.exported import BackendChoice, Export

GROUP: Final = "rdma_nfsd.backends"
PYTHON: Final = "python"
BUILT_IN: Final = {
    "cephfs": "nfsd.backends.cephfs:make_store",
    "fsspec": "nfsd.backends.fsspec:FsspecBackend",
    "git": "nfsd.backends.git:GitBackend",
    "memory": "nfsd.backends.memory:MemoryBackend",
}


class BadBackend(OSError):
    """There is no such store, or it cannot be made."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ENODEV, message)


def make_store(export: Export) -> Store:
    """The store of an export that has one. Raises BadBackend; OSError as the store does."""
    choice = export.backend
    assert choice is not None, "a directory"
    factory = factory_of(choice)
    try:
        made = factory(**choice.options)
    except OSError:
        raise
    except Exception as error:
        raise BadBackend(f"backend {choice}: {type(error).__name__}: {error}") from error
    if isinstance(made, SimpleBackend):
        return KeyedStore(made)
    if not all(hasattr(made, part) for part in ("identity", "names", "data", "files")):
        raise BadBackend(f"backend {choice} has made a {type(made).__name__}, which is no store")
    return cast(Store, made)


def factory_of(choice: BackendChoice) -> Callable[..., Any]:
    """What makes the store. Raises BadBackend."""
    try:
        if choice.kind == PYTHON or choice.kind in BUILT_IN:
            module, _, name = BUILT_IN.get(choice.kind, choice.module).partition(":")
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        else:
            entries = list(entry_points(group=GROUP, name=choice.kind))
            if not entries:
                names = sorted({PYTHON, *BUILT_IN, *(one.name for one in entry_points(group=GROUP))})
                raise BadBackend(f"no backend {choice.kind!r} is installed; there are {', '.join(names)}")
            found = entries[0].load()
    except OSError:
        raise
    except Exception as error:
        # An import runs the module's code, which may raise anything.
        raise BadBackend(f"backend {choice} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise BadBackend(f"backend {choice} is not callable")
    return cast(Callable[..., Any], found)
