"""fattr4 in native code. Implemented in ``fattr.pyx``."""

from nfsd.vfs.types import Attributes

def native_of(mask: int, *, numeric: bool = True) -> int:
    """The attributes of ``mask`` that are encoded natively; owners as numbers only."""

def encoded(
    mask: int, others: list[tuple[int, bytes]], attributes: Attributes, handle: bytes, lease_time: int, error: int
) -> bytes:
    """A fattr4 with the attributes of ``mask``, of which ``others`` are given by number, in this order, with the octets of
    their values. ``lease_time``: seconds; ``error``: rdattr_error."""

class Fattr:
    """Attributes that follow from a ``struct statx``; of use to native code only."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...
