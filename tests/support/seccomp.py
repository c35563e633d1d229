"""A seccomp filter, such as a service manager or a container puts on a process (seccomp(2)): tests start one under it.

``python -m tests.support.seccomp ERRNO NUMBER,... COMMAND...`` runs the command with these system calls forbidden.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_RETURN_ERRNO, _RETURN_ALLOW = 0x00050000, 0x7FFF0000
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_INSTRUCTION = struct.Struct("=HBBI")


def deny(error: int, numbers: list[int]) -> None:
    """Have these system calls fail so, in this process and its children, for good."""
    program = [_INSTRUCTION.pack(_LOAD, 0, 0, 0)]
    for number in numbers:
        program.append(_INSTRUCTION.pack(_JUMP_EQUAL, 0, 1, number))
        program.append(_INSTRUCTION.pack(_RETURN, 0, 0, _RETURN_ERRNO | error))
    program.append(_INSTRUCTION.pack(_RETURN, 0, 0, _RETURN_ALLOW))
    octets = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("@HP", len(program), ctypes.addressof(octets))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _FILTER, header):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    deny(int(sys.argv[1]), [int(word) for word in sys.argv[2].split(",")])
    os.execvp(sys.argv[3], sys.argv[3:])
