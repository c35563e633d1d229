"""rdma-nfsd: an NFSv3/NFSv4 server in user space, over RPC-over-RDMA and TCP."""
