"""Run in a guest: write numbered lines through one open file, each on the disk (fsync) before the next. Standard
library only.

``appender.py FILE SECONDS``        say "wrote N" after every fifth line, at the end "total N".
``appender.py check FILE COUNT``    the file holds exactly the first COUNT lines.
"""

import os
import sys
import time


def line(number: int) -> bytes:
    return b"line %08d\n" % number


if sys.argv[1] == "check":
    with open(sys.argv[2], "rb") as file:
        assert file.read() == b"".join(line(number) for number in range(int(sys.argv[3])))
else:
    descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    end = time.monotonic() + float(sys.argv[2])
    count = 0
    while time.monotonic() < end:
        data = line(count)
        assert os.pwrite(descriptor, data, count * len(data)) == len(data)
        os.fsync(descriptor)
        count += 1
        if count % 5 == 0:
            os.write(1, b"wrote %d\n" % count)
        time.sleep(0.02)
    os.close(descriptor)
    os.write(1, b"total %d\n" % count)
