"""Misbehaviour on purpose (``rdma-nfsd serve --faults FILE``), for those who develop clients.

``rules`` is the file; ``calls`` reads a call as far as rules ask, and makes the one that is executed in its place;
``choosing`` decides which rule is for which call; ``callbacks`` are those that get lost; ``acts`` is what is done to
the server's state; ``control`` is what the control socket and the metrics have of it; ``fitting`` is what the daemon
knows of all this. How a reply is held back or spoilt is in :mod:`rpcrdma.faults`.
"""
