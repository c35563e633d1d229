"""CephFS: a cluster of the tests' own, the backend over it, and records in it (make test-ceph)."""
