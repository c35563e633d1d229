"""RPC-over-RDMA (RFC 8166), ONC RPC and their transports. Knows nothing of NFS."""
