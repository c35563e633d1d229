"""The guest harness: a real Linux NFS client under qemu, and tests that drive it against the server."""
