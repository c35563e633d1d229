"""The demands of the specifications that an NFS server's answers can show, put to any server over RPC-over-RDMA:

    python -m tests.peer.checklist ADDRESS PORT MOUNTD_PORT

The server is to export /export, writable, over NFSv3 and NFSv4.0, to root. The questions are
those of :mod:`nfsd.conformance`, with those about callbacks, which are written with the tests' client of NFSv4.
"""
