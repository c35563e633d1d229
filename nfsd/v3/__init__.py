"""NFS version 3 (RFC 1813): one function per procedure, one row per procedure in a table."""
