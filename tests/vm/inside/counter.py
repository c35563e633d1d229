"""Run in a guest: add one to the number in FILE, COUNT times, each time under a lock. Standard library only."""

import fcntl
import os
import sys
import time

file = os.open(sys.argv[1], os.O_RDWR)
for _ in range(int(sys.argv[2])):
    fcntl.lockf(file, fcntl.LOCK_EX)
    number = int(os.pread(file, 20, 0))
    os.pwrite(file, b"%d\n" % (number + 1), 0)
    fcntl.lockf(file, fcntl.LOCK_UN)
    time.sleep(0.01)
