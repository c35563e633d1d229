"""TLS for RPC over TCP (RFC 9289): certificates, handshakes, and the way from TLS records to those of RPC."""
