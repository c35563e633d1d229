"""Attributes that clients give files. Implemented in ``given.pyx``; of use to native code only."""
