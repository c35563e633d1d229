"""A Ceph cluster of one node, in user space, for tests: a monitor, a manager, an OSD on a file, a metadata server.

Owns the processes, and a directory for what they keep; imports nothing of the project. It takes Debian's ceph-mon,
ceph-mgr, ceph-osd, ceph-mds and ceph-common (tests/vm/host-packages.sh ceph), some 600 MB of memory and half a minute.
Everybody is known by a key (cephx). What the OSD has acknowledged outlasts its death, so that one can be killed.

    python -m tests.ceph.cluster DIRECTORY [ADDRESS]      until it is interrupted; clients use DIRECTORY/ceph.conf
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.support.ports import free_port

PROGRAMS: Final = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph", "ceph-authtool", "monmaptool", "setpriv")
FILE_SYSTEM: Final = "cephfs"
PATIENCE: Final = 240
"""Seconds that a daemon may take to come up, on a machine that does other things as well."""
_OSD_SIZE: Final = 8 << 30
"""Octets of the OSD's file, which is sparse."""

_CONF: Final = """[global]
fsid = {fsid}
mon_host = v1:{address}:{port}
mon_initial_members = a
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = {directory}/keyrings/$name
run_dir = {directory}/run
admin_socket = {directory}/run/$name.$pid.asok
log_file = {directory}/run/$name.log
mon_data = {directory}/data/mon
mgr_data = {directory}/data/mgr
osd_data = {directory}/data/osd
mds_data = {directory}/data/mds
ms_bind_msgr2 = false
ms_bind_ipv6 = false
public_addr = {address}
cluster_addr = {address}
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_crush_chooseleaf_type = 0
osd_pool_default_pg_autoscale_mode = off
osd_objectstore = bluestore
bluestore_block_size = {size}
osd_memory_target = 939524096
bluestore_fsck_quick_fix_on_mount = false
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_crit = 1
mon_osd_full_ratio = 0.99
mon_osd_backfillfull_ratio = 0.98
mon_osd_nearfull_ratio = 0.97
auth_allow_insecure_global_id_reclaim = false
mgr_initial_modules =
[mon.a]
mon_addr = v1:{address}:{port}
"""
_CAPS: Final = {
    "client.admin": {"mon": "allow *", "mgr": "allow *", "osd": "allow *", "mds": "allow *"},
    "mgr.x": {"mon": "allow profile mgr", "osd": "allow *", "mds": "allow *"},
    "mds.a": {"mon": "allow profile mds", "mgr": "allow profile mds", "osd": "allow *", "mds": "allow *"},
}

RESTARTS = {signal.SIGUSR1: "osd", signal.SIGUSR2: "mds"}
"""What a signal to this program restarts."""


def missing() -> list[str]:
    """The programs that a cluster takes and this machine has not."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


class Cluster:
    """A cluster, whose processes end with this one."""

    def __init__(self, directory: Path, address: str = "127.0.0.1") -> None:
        """``directory``: is made; what is in it is the cluster's. ``address``: where it is reached."""
        self.directory = directory.absolute()
        self._address = address
        self.conf = self.directory / "ceph.conf"
        self.fsid = str(uuid.uuid4())
        self._osd_uuid = str(uuid.uuid4())
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._starter = ThreadPoolExecutor(1)
        """Starts them: what dies with its parent does so when the thread ends that has started it."""

    # -- starting and stopping -----------------------------------------------------------------------------------
    def start(self) -> None:
        """Make the cluster and its file system, and wait for that. Raises RuntimeError."""
        for name in ("keyrings", "run", *(f"data/{kind}" for kind in ("mon", "mgr", "osd", "mds"))):
            (self.directory / name).mkdir(parents=True)
        port = free_port()
        values = {"fsid": self.fsid, "port": port, "directory": self.directory, "size": _OSD_SIZE}
        self.conf.write_text(_CONF.format(address=self._address, **values))
        self._make_monitor(port)
        self._begin("mon", "ceph-mon", "a")
        self.command("mon", "stat")
        self._begin("mgr", "ceph-mgr", "x")
        number = self.command("osd", "new", self._osd_uuid).strip()
        caps = {"mon": "allow profile osd", "mgr": "allow profile osd", "osd": "allow *"}
        self.add_key(f"osd.{number}", caps)
        self._osd = number
        self._run("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", self._osd_uuid)
        self.start_osd()
        for pool in ("meta", "data"):
            self.command("osd", "pool", "create", pool, "8")
        self.command("fs", "new", FILE_SYSTEM, "meta", "data")
        self.start_mds()

    def stop(self) -> None:
        """End what was started."""
        for process in reversed(self._running.values()):
            process.kill()
            process.wait()
        self._running.clear()
        self._starter.shutdown()

    def start_osd(self) -> None:
        """Start the OSD, and wait until it serves."""
        self._begin("osd", "ceph-osd", self._osd)
        self._wait_for("an OSD", lambda: " 1 up" in self.command("osd", "stat"))

    def start_mds(self) -> None:
        """Start the metadata server, and wait until it serves."""
        self._begin("mds", "ceph-mds", "a")
        self._wait_for("a metadata server", lambda: "up:active" in self.command("mds", "stat"))

    def kill(self, kind: str) -> None:
        """Kill the ``mon``, ``mgr``, ``osd`` or ``mds`` at once."""
        process = self._running.pop(kind)
        process.kill()
        process.wait()

    def pause(self, kind: str) -> None:
        """Have one do nothing until :meth:`resume`: whoever asks it waits."""
        self._running[kind].send_signal(signal.SIGSTOP)

    def resume(self, kind: str) -> None:
        """Have it go on."""
        self._running[kind].send_signal(signal.SIGCONT)

    # -- using it ------------------------------------------------------------------------------------------------
    def command(self, *words: str) -> str:
        """What ``ceph`` prints, as the administrator."""
        return self._run("ceph", "--connect-timeout", str(PATIENCE), *words)

    def add_key(self, name: str, caps: dict[str, str]) -> Path:
        """Add one who may do this. Returns the file of the key."""
        file = self._make_key(name, caps)
        self.command("auth", "import", "-i", str(file))
        return file

    def keyring(self, name: str = "client.admin") -> Path:
        """The file of a key."""
        return self.directory / "keyrings" / name

    # -- parts of these ------------------------------------------------------------------------------------------
    def _make_monitor(self, port: int) -> None:
        ring = self._make_key("mon.", {"mon": "allow *"})
        for name, caps in _CAPS.items():
            self._run("ceph-authtool", str(ring), "--import-keyring", str(self._make_key(name, caps)))
        shutil.copy(ring, self.keyring("mon.a"))
        (self.directory / "data" / "mon").rmdir()
        monmap = str(self.directory / "run" / "monmap")
        self._run("monmaptool", "--create", "--addv", "a", f"[v1:{self._address}:{port}]", "--fsid", self.fsid, monmap)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", str(ring))

    def _make_key(self, name: str, caps: dict[str, str]) -> Path:
        file = self.keyring(name)
        words = [word for kind, what in caps.items() for word in ("--cap", kind, what)]
        self._run("ceph-authtool", "--create-keyring", str(file), "--gen-key", "-n", name, *words)
        return file

    def _environment(self) -> dict[str, str]:
        path = os.environ.get("PATH", os.defpath)
        return {**os.environ, "CEPH_CONF": str(self.conf), "PATH": os.pathsep.join((path, "/usr/sbin", "/sbin"))}

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            words, env=self._environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def _begin(self, kind: str, program: str, name: str) -> None:
        """Start a daemon in the foreground, so that it is ours to end; it dies with us."""
        with open(self.directory / "run" / f"{kind}.out", "ab") as out:
            starting = self._starter.submit(
                subprocess.Popen, ["setpriv", "--pdeathsig", "KILL", program, "-f", "-i", name],
                env=self._environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
            self._running[kind] = starting.result()

    def _wait_for(self, what: str, ready: object) -> None:
        assert callable(ready)
        deadline = time.monotonic() + PATIENCE
        while not ready():
            for kind, process in self._running.items():
                if process.poll() is not None:
                    said = (self.directory / "run" / f"{kind}.out").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"the {kind} has ended with {process.returncode}: {said}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} has not come up; see {self.directory / 'run'}")
            time.sleep(0.2)


def main() -> None:
    """Run one until a signal comes. Some restart a part of it, as if it had been killed."""
    if len(sys.argv) not in (2, 3) or missing():
        lacking = ", ".join(missing()) or "nothing"
        sys.exit(f"usage: python -m tests.ceph.cluster DIRECTORY [ADDRESS]; missing here: {lacking}")
    cluster = Cluster(Path(sys.argv[1]), *sys.argv[2:])
    signal.pthread_sigmask(signal.SIG_BLOCK, RESTARTS)
    try:
        began = time.monotonic()
        cluster.start()
        print(f"up after {time.monotonic() - began:.0f} s: {cluster.conf}", flush=True)
        while (number := signal.sigwait({signal.SIGINT, signal.SIGTERM, *RESTARTS})) in RESTARTS:
            kind = RESTARTS[number]
            cluster.kill(kind)
            {"osd": cluster.start_osd, "mds": cluster.start_mds}[kind]()
            print(f"{kind} restarted", flush=True)
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
