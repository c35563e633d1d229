"""NFS version 4.0, 4.1 and 4.2 (RFC 7530, 8881, 7862): one function per operation, one row in a table."""
