"""The backends' conformance suite: scenarios that clients of NFS go through, in an export of any backend.

Authors of backends run it: ``pytest --pyargs nfsd.backend_suite --backend=package.module:factory``. The server
as a whole is tried, over loopback: its configuration, NFSv3 and NFSv4.1, TCP and RDMA.
"""
