"""Servers that keepalived moves between two hosts, each a network namespace, as docs/clustering.md sets them up."""
