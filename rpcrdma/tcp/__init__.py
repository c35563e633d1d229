"""RPC over TCP: record marking (RFC 5531 section 11)."""
