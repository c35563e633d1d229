"""Measurements of the server: what an operation costs and where it goes."""
