"""The thread that asks for an owner's quotas acts as the owner; it is not the owner's to end."""

import os
import subprocess
import sys
import threading

import pytest

from nfsd.vfs.owner_quotas import ask

OWNER = 12345
SIGNAL = """
import os, sys
os.setgroups([])
os.setresgid(12345, 12345, 12345)
os.setresuid(12345, 12345, 12345)
try:
    os.kill(int(sys.argv[1]), 0)
except PermissionError:
    print("not permitted")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes others")
def test_local_users_send_no_signals_to_the_thread_that_asks_for_them(tmp_path):
    # kill(2) goes by the real and the saved id of the thread it names; most signals end the whole process.
    found: dict[str, list[str]] = {}
    asked, over = threading.Event(), threading.Event()

    def run():
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            ask(descriptor, OWNER, OWNER, (0, 1))
            with open("/proc/thread-self/status") as file:
                found.update((line.split(":")[0], line.split()[1:]) for line in file)
        finally:
            os.close(descriptor)
            asked.set()
            over.wait()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        asked.wait()
        said = subprocess.run(
            [sys.executable, "-c", SIGNAL, str(thread.native_id)], capture_output=True, text=True, check=True
        )
    finally:
        over.set()
        thread.join()
    assert said.stdout == "not permitted\n"
    assert (found["Uid"][1], found["Gid"][1], int(found["CapEff"][0], 16)) == (str(OWNER), str(OWNER), 0)
