"""Seeing the wire: what passes a provider's interface, recorded, made packets of, and read again.

``events`` is the vocabulary; ``recorder`` and ``tap`` stand in the server while somebody captures; ``frames`` and
``pcapng`` make a file of events that Wireshark reads; ``streams`` and ``words`` read such a file. ``rpcordma2.lua`` is
Wireshark's dissector of version Two.
"""

from pathlib import Path

DISSECTOR = Path(__file__).with_name("rpcordma2.lua")
