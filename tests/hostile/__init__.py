"""Attacks on a running server, while an honest client uses it and the server's memory, descriptors and log are watched.

    python -m tests.hostile                      every attack once, a table
    python -m tests.hostile --seconds 60         each for longer
    python -m tests.hostile --only slow-readers  one of them

The server is ``rdma-nfsd serve`` with its defaults, a process of its own; so is the honest client
(:mod:`tests.hostile.honest`). Attackers come from other addresses of the loopback network. What must hold of every
attack is in :mod:`tests.hostile.run`, the attacks are in :mod:`tests.hostile.attacks`.
"""
