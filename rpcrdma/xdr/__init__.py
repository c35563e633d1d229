"""XDR (RFC 4506): wire types declared once, walked by a reference codec and by a native one.

Layer above :mod:`rpcrdma.memory`; imports nothing else of the project, and does no I/O.
"""
