"""Misbehaviour on purpose, for those who develop clients: what is done to single calls and their replies.

``plan`` is the vocabulary; ``dispatcher`` carries plans out. Who decides what is done to which call knows the program,
and is above.
"""
