"""RDMA devices, over libibverbs and librdmacm.

This package imports everywhere; :class:`DeviceProvider` can be had only where its extension was built and its
libraries are installed. :func:`why_not` says what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rpcrdma.verbs.device.errors import missing_library
from rpcrdma.verbs.device.limits import raise_memory_lock
from rpcrdma.verbs.device.options import DeviceOptions

if TYPE_CHECKING:
    from rpcrdma.memory import Pool
    from rpcrdma.verbs.device.provider import DeviceProvider


def why_not() -> str:
    """Why there is no device provider in this installation; '' when there is one."""
    try:
        from rpcrdma.verbs.device import provider  # noqa: F401 (its absence is the answer)
    except ImportError as error:
        return missing_library(error)
    return ""


def device_names() -> list[str]:
    """The RDMA devices there are now; none where there can be none."""
    if why_not():
        return []
    from rpcrdma.verbs.device import cm

    return cm.device_names()


def make_provider(pool: Pool, options: DeviceOptions | None = None) -> DeviceProvider:
    """A provider over all of this host's devices. Raises OSError where there cannot be one, with the remedy."""
    missing = why_not()
    if missing:
        raise OSError(f"RDMA devices cannot be used: {missing}")
    from rpcrdma.verbs.device.provider import DeviceProvider

    return DeviceProvider(pool, options)


__all__ = ["DeviceOptions", "device_names", "make_provider", "raise_memory_lock", "why_not"]
