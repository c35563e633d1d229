"""System calls that fail on demand: a filter (seccomp(2)) on all threads of a process."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_PR_SET_NO_NEW_PRIVS, _SECCOMP, _SET_MODE_FILTER, _ALL_THREADS = 38, 317, 1, 1
assert platform.machine() == "x86_64", "the number of seccomp(2) is that of x86-64"
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_ARGUMENTS = 16
"""Offset of the first argument in struct seccomp_data."""


def refuse(number: int, first: int | None = None, code: int = errno.EPERM) -> None:
    """Have system call ``number`` fail; with ``first``, if that is the first argument (its low 32 bits). There is no
    way back: for processes that end with the test."""
    steps = [(_LOAD, 0, 0, 0), (_EQUAL, 0, 3 if first is not None else 1, number)]
    if first is not None:
        steps += [(_LOAD, 0, 0, _ARGUMENTS), (_EQUAL, 0, 1, first)]
    steps += [(_RETURN, 0, 0, _FAIL | code), (_RETURN, 0, 0, _ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    described = struct.pack("@HP", len(steps), ctypes.addressof(program))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if library.syscall(_SECCOMP, _SET_MODE_FILTER, _ALL_THREADS, described) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")
