"""CephFS: a cluster of the tests' own, and the backend over it (make test-ceph)."""
