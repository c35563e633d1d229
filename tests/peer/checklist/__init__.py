"""The demands of the specifications that an NFS server's answers can show, put to any server over RPC-over-RDMA:

    python -m tests.peer.checklist ADDRESS PORT MOUNTD_PORT

The server is to export /export, writable, over NFSv3 and NFSv4.0, to root. Each question is a function named for the
items of tests/rfc/items.py it asks about; it raises :class:`Differs` where the server does something else. Messages are
the synthetic peer's, and nothing is asked by way of the server's own code.
"""
