"""Run in a guest: do what the lines of a FIFO say with files, one system call a line. Standard library only.

Each line is answered with its number, what came out ("ok …" or "error NAME") and how many seconds it took:

``open FILE PATH FLAG…``                FLAG: rd, rw, creat, excl, trunc, append
``close FILE``
``lock FILE ex|sh START LENGTH [wait [SECONDS]]``  by fcntl; LENGTH 0: to the end of the file; a signal ends the wait
``unlock FILE START LENGTH``
``getlk FILE ex|sh START LENGTH``       "ok free", or the lock in the way
``flock FILE ex|sh|un [wait]``
``write FILE OFFSET TEXT``              and fsync; OFFSET -1: at the position (append)
``dirty FILE OFFSET TEXT``              and no fsync
``sync FILE``
``read FILE OFFSET LENGTH``
``stat FILE``                           links and size
``quit``
"""

import errno
import fcntl
import os
import signal
import struct
import sys
import time

FLAGS = {
    "rd": os.O_RDONLY, "rw": os.O_RDWR, "creat": os.O_CREAT, "excl": os.O_EXCL, "trunc": os.O_TRUNC,
    "append": os.O_APPEND,
}  # fmt: skip
KINDS = {"ex": fcntl.LOCK_EX, "sh": fcntl.LOCK_SH, "un": fcntl.LOCK_UN}
FLOCK = "hhqqi4x"

files: dict[str, int] = {}


def interrupted(*_: object) -> None:
    raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))


def obey(words: list[str]) -> str:
    command, name, *rest = words
    if command == "open":
        flags = 0
        for word in rest[1:]:
            flags |= FLAGS[word]
        files[name] = os.open(rest[0], flags, 0o666)
        return ""
    file = files[name]
    if command == "close":
        os.close(files.pop(name))
    elif command == "lock":
        if len(rest) > 4:
            signal.setitimer(signal.ITIMER_REAL, float(rest[4]))
        fcntl.lockf(file, KINDS[rest[0]] | (0 if "wait" in rest else fcntl.LOCK_NB), int(rest[2]), int(rest[1]))
    elif command == "unlock":
        fcntl.lockf(file, fcntl.LOCK_UN, int(rest[1]), int(rest[0]))
    elif command == "getlk":
        kind = fcntl.F_WRLCK if rest[0] == "ex" else fcntl.F_RDLCK
        found = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(FLOCK, kind, 0, int(rest[1]), int(rest[2]), 0))
        kind, _, start, length, _ = struct.unpack(FLOCK, found)
        return "free" if kind == fcntl.F_UNLCK else f"{'ex' if kind == fcntl.F_WRLCK else 'sh'} {start} {length}"
    elif command == "flock":
        fcntl.flock(file, KINDS[rest[0]] | (0 if "wait" in rest or rest[0] == "un" else fcntl.LOCK_NB))
    elif command == "write":
        data = " ".join(rest[1:]).encode()
        if int(rest[0]) < 0:
            os.write(file, data)
        else:
            os.pwrite(file, data, int(rest[0]))
        os.fsync(file)
    elif command == "dirty":
        os.pwrite(file, rest[1].encode(), int(rest[0]))
    elif command == "sync":
        os.fsync(file)
    elif command == "read":
        return os.pread(file, int(rest[1]), int(rest[0])).decode()
    elif command == "stat":
        status = os.fstat(file)
        return f"{status.st_nlink} {status.st_size}"
    else:
        raise SystemExit(f"unknown command {command}")
    return ""


signal.signal(signal.SIGALRM, interrupted)
os.write(1, b"ready\n")
number = 0
with open(os.open(sys.argv[1], os.O_RDWR), encoding="ascii") as commands:  # for writing too: it never ends
    for line in commands:
        words = line.split()
        if words[0] == "quit":
            break
        number += 1
        start = time.monotonic()
        try:
            answer = f"ok {obey(words)}".rstrip()
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error.errno))
            answer = f"error {'EDEADLK' if error.errno == errno.EDEADLK else name}"  # the table has the older name
        os.write(1, f"<{number}> {answer} <{time.monotonic() - start:.2f}>\n".encode())
