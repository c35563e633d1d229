"""RPC-over-RDMA responder and requester: state machines without I/O."""
