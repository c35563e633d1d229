"""RDMA connections: the provider interface and its implementations."""
