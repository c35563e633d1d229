"""fattr4 in native code. Implemented in ``direct_attributes.pyx``."""

class DirectAttributes:
    """Attributes that follow from a ``struct statx``; of use to native code only."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...
