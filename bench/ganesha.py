"""NFS-Ganesha: as Debian has it here, and other releases in a directory that holds a Debian of theirs.

Such a root is made once (as root, with mmdebstrap):

    python -m bench.ganesha /var/tmp/ganesha-sid sid

Ganesha runs in it by chroot, with its own loader and libraries, and sees the directory that it exports through a bind
mount. Owns :class:`Ganesha` and the network namespace that it needs; imports :mod:`bench.servers`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench.servers import LocalServer, NotStarted, listens, wait_until

_CONFIGURATION = """\
NFS_CORE_PARAM {{
    NFS_Port = {tcp}; MNT_Port = {mountd}; Protocols = 3, 4; mount_path_pseudo = true; allow_set_io_flusher_fail = true;
    Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;
}}
NFSv4 {{ Graceless = true; RecoveryRoot = "{place}/recovery"; }}
EXPORT {{
    Export_Id = {number}; Pseudo = "/export"; Access_Type = RW; Squash = No_Root_Squash; SecType = {security};
    Transports = TCP; {store}
}}
LOG {{ Default_log_level = CRIT; }}
"""
_KERBEROS = """\
NFS_KRB5 {{ PrincipalName = "nfs"; KeytabPath = "{place}/keytab"; CCacheDir = "{place}/tickets"; Active_krb5 = true; }}
"""
PACKAGES = ("nfs-ganesha", "nfs-ganesha-vfs")
NEWEST_RELEASE = "sid"
DURABILITY = (
    "Ganesha flushes what COMMIT and stable WRITEs ask for. It does not flush new, changed and removed names "
    "before it answers; rdma-nfsd does (RFC 1813 section 1.2)."
)
RPCBIND = 111
IN_ROOT = Path("/srv")
"""Where a Ganesha in a Debian of its own sees its directory."""


class Ganesha(LocalServer):
    """NFS-Ganesha as Debian has it (nfs-ganesha, nfs-ganesha-vfs), over TCP. It does not start without rpcbind, so both
    need a network of their own: :func:`enter_namespace`."""

    name = "ganesha"
    root: ClassVar[Path | None] = None
    """The Debian that it is in; None: this one."""
    fsal: ClassVar[str] = "vfs"
    """What it serves from: a module of its own, which Debian has in a package of its own."""
    lacks = frozenset({"open-delegated-v4.1"})  # by itself it delegates no files
    number: ClassVar[int] = 1
    """Its export's, by which Ceph tells the Ganeshas of one host apart."""

    def __init__(self, directory: Path, realm: Path | None = None) -> None:
        """``realm``: a directory with the files ``keytab`` and ``krb5.conf``, for Kerberos."""
        super().__init__(directory)
        programs = ["rpcbind", *([] if self.root else ["ganesha.nfsd"])]
        missing = [program for program in programs if shutil.which(program) is None]
        if missing:
            raise SystemExit(f"no {' and no '.join(missing)} here: apt-get install {' '.join(PACKAGES)} rpcbind")
        if not self.root and not list(Path("/usr/lib").glob(f"*/ganesha/libfsal{self.fsal}.so")):
            # It would start all the same, and refuse the mount.
            raise SystemExit(f"no {self.fsal.upper()} for Ganesha here: apt-get install nfs-ganesha-{self.fsal}")
        self.rpcbind: subprocess.Popen[bytes] | None = None
        if not listens(RPCBIND):
            self.rpcbind = subprocess.Popen(["rpcbind", "-f"], stderr=subprocess.DEVNULL)
            wait_until(RPCBIND)
        place = IN_ROOT if self.root else directory
        (directory / "recovery").mkdir()
        security = "sys" if realm is None else "sys, krb5, krb5i, krb5p"
        configuration = _CONFIGURATION.format(
            tcp=self.tcp,
            mountd=self.mountd,
            place=place,
            security=security,
            number=self.number,
            store=self.store(place),
        )
        environment = dict(os.environ)
        if realm is not None:
            for name in ("keytab", "krb5.conf"):
                shutil.copy(realm / name, directory)
            (directory / "tickets").mkdir()
            configuration += _KERBEROS.format(place=place)
            environment["KRB5_CONFIG"] = f"{place}/krb5.conf"
        (directory / "conf").write_text(configuration)
        log = directory / "log"
        command = ["ganesha.nfsd", "-F", "-f", f"{place}/conf", "-L", f"{place}/log", "-p", f"{place}/pid"]
        self.process = subprocess.Popen(
            [*enter_root(self.root, directory), *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        try:
            wait_until(self.tcp)
            wait_until(self.mountd)
        except TimeoutError:
            self.stop()
            end = log.read_text()[-2000:] if log.exists() else "(it has none)"
            raise NotStarted(f"{self.name} did not start; the end of its log:\n{end}") from None

    def store(self, place: Path) -> str:
        """What its configuration says of what the export is. ``place``: its directory, as it sees that."""
        return f'Path = "{place}/export"; FSAL {{ Name = VFS; }}'

    def stop(self) -> None:
        """End it, its rpcbind, and its view of the directory."""
        super().stop()
        if self.rpcbind is not None:
            self.rpcbind.terminate()
            self.rpcbind.wait()


def enter_root(root: Path | None, directory: Path) -> list[str]:
    """The beginning of a command that is to run in that Debian and see the directory at IN_ROOT. The mounts are in a
    namespace of the command's, and end with it."""
    if root is None:
        return []
    script = (
        f'mount --rbind "$2" "$1{IN_ROOT}" && mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" && '
        'mount --rbind /run "$1/run" && root=$1 && shift 2 && exec chroot "$root" "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh", str(root), str(directory)]


def in_root(root: Path) -> type[Ganesha]:
    """The Ganesha of the Debian in that directory, by its version. Raises SystemExit where there is none."""
    version = packaged(root)
    if not version:
        raise SystemExit(f"no Ganesha in {root}: python -m bench.ganesha {root}")
    return type(f"Ganesha{version}", (Ganesha,), {"name": f"ganesha-{version}", "root": root.resolve()})


def packaged(root: Path | None = None) -> str:
    """The release that dpkg knows of, such as ``4.3``; empty: none."""
    status = (root or Path("/")) / "var/lib/dpkg/status"
    return release(status.read_text()) if status.exists() else ""


def release(status: str) -> str:
    """Of the upstream version of nfs-ganesha in dpkg's status file; empty: it is not installed."""
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Package") == PACKAGES[0] and fields.get("Status", "").endswith(" installed"):
            return fields["Version"].rpartition("-")[0].partition(":")[2] or fields["Version"].rpartition("-")[0]
    return ""


def make_root(root: Path, suite: str) -> None:
    """A Debian of that suite with nothing but Ganesha in it."""
    # A mirror may lag behind by more than an unstable suite's lists are valid; their signatures are checked.
    late = 'Acquire::Check-Valid-Until "false"'
    packages = f"--include={','.join(PACKAGES)}"
    command = ["mmdebstrap", "--mode=root", "--variant=apt", f"--aptopt={late}", packages, suite, str(root)]
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{error}; it needs root, and mmdebstrap: apt-get install mmdebstrap") from None
    # Ganesha looks up localhost, and its file system among the mounted ones.
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc/mtab").unlink(missing_ok=True)
    (root / "etc/mtab").symlink_to("/proc/self/mounts")


_ENTERED = "RDMA_NFSD_BENCH_NAMESPACE"
_IN_NAMESPACE = 'mount -t tmpfs none /run && ip link set lo up && exec "$@"'


def enter_namespace(arguments: Sequence[str]) -> None:
    """Run this program again where the network is loopback alone and /run is empty, unless that is where we are."""
    if not os.environ.get(_ENTERED):
        inside = ["sh", "-c", _IN_NAMESPACE, "sh", sys.executable, "-m", "bench", *arguments]
        os.execvpe("unshare", ["unshare", "--net", "--mount", *inside], {**os.environ, _ENTERED: "yes"})


def main() -> int:
    """Make a root."""
    named = argparse.ArgumentParser(prog="python -m bench.ganesha", description=__doc__)
    named.add_argument("root", type=Path, help="a directory that is to be made")
    named.add_argument("suite", nargs="?", default=NEWEST_RELEASE, help=f"of Debian (default {NEWEST_RELEASE})")
    options = named.parse_args()
    make_root(options.root, options.suite)
    print(f"{options.root}: Ganesha {packaged(options.root)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
