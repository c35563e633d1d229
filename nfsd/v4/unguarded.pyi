"""Which COMPOUNDs nothing but the RPC replay cache protects. Implemented in ``unguarded.pyx``."""

def unguarded(arguments: memoryview) -> bool:
    """Whether the RPC replay cache knows a COMPOUND: it is of NFSv4.0, and not all its operations are common ones that
    change nothing. Native calls do without its reply if all that it changes is one owner's."""
