"""Stores that files are served from: the contract of a backend, and the backends that there are."""
