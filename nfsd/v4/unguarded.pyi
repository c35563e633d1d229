"""Which COMPOUNDs nothing but the RPC replay cache protects. Implemented in ``unguarded.pyx``."""

def unguarded(arguments: memoryview) -> bool:
    """Whether nothing but the RPC replay cache protects what a COMPOUND does: it is of NFSv4.0, and not all its operations
    are common ones that change nothing."""
