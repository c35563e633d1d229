"""Transport headers, chunk lists and CM private data of RPC-over-RDMA."""
