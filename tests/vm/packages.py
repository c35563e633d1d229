"""Debian packages for the guest: looked up, downloaded and unpacked, never installed.

Owns the running of apt and dpkg-deb, and the steps of a build. The host's own apt knows the packages of the Debian that
runs here; :class:`Suite` is that of any Debian, with lists of its own below the lab directory. No root right is needed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DOWNLOADER = "_apt"
NULL = Path("/dev/null")
MIRROR, SECURITY = "http://deb.debian.org/debian", "http://deb.debian.org/debian-security"

_START = time.monotonic()


def progress(text: str) -> None:
    """Print one line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _START:.0f}s] {text}", flush=True)


class BuildError(Exception):
    """A step of the build failed; the message says which command and shows the end of its output."""


def run(*argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command, return its standard output. Raises BuildError with the end of its output when it fails."""
    command = [str(word) for word in argv]
    environment = {**os.environ, "LC_ALL": "C", **(env or {})}
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as missing:
        raise BuildError(f"{command[0]}: not found ({missing}); run 'make lab'") from missing
    if done.returncode:
        raise BuildError(f"{' '.join(command[:6])}: status {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def digest(*inputs: str | bytes) -> str:
    """What tells the inputs of a step from others."""
    sha = hashlib.sha256()
    for item in inputs:
        sha.update(item.encode() if isinstance(item, str) else item)
        sha.update(b"\0")
    return sha.hexdigest()[:24]


def step(lab: Path, name: str, inputs: str, action: Callable[[], None]) -> None:
    """Run ``action`` unless the stamp of step ``name`` already shows these ``inputs``."""
    stamp = lab / "stamps" / name
    if stamp.exists() and stamp.read_text() == inputs:
        return
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    action()
    stamp.write_text(inputs)


@dataclass(frozen=True)
class Suite:
    """A Debian as apt knows it. ``name``: a suite (``trixie``, ``trixie-backports``); empty: the host's own, with what
    is installed here. Of another one, nothing is installed: every package that is wanted comes with all it needs."""

    lab: Path
    name: str = ""

    @property
    def directory(self) -> Path:
        """Where its lists and downloads lie."""
        return self.lab / "apt" / (self.name or "host")

    @cached_property
    def options(self) -> tuple[str, ...]:
        """What apt is told, so that it works on this suite and needs no root right."""
        options = ["-q"]
        if wrong := wrong_with_null():
            if os.geteuid() != 0:
                raise BuildError(wrong)
            progress(f"{wrong}; going on with apt as root")
        if wrong or not open_to_others(self.directory):
            options += ["-o", "APT::Sandbox::User=root"]  # where its own user cannot go, apt would only complain
        if not self.name:
            return tuple(options)
        where = self.directory
        for name in ("lists/partial", "cache/archives/partial"):
            (where / name).mkdir(parents=True, exist_ok=True)
        (where / "status").touch()
        (where / "sources.list").write_text(self._sources())
        own = {
            "Dir::Etc::sourcelist": where / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::State": where,
            "Dir::State::lists": where / "lists",
            "Dir::State::status": where / "status",
            "Dir::Cache": where / "cache",
        }
        options += [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
        return (*options, *(("-t", self.name) if self.name.endswith("-backports") else ()))

    def _sources(self) -> str:
        """The suite at the mirrors that the host uses."""
        base = self.name.removesuffix("-backports")
        sources = [(_mirror("debian", MIRROR), base), (_mirror("debian-security", SECURITY), f"{base}-security")]
        if base != self.name:
            sources.append((_mirror("debian", MIRROR), self.name))
        return "".join(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for mirror, suite in sources)

    def update(self) -> None:
        """Fetch the lists of another Debian's packages. The host's are the host's."""
        if self.name:
            run("apt-get", *self.options, "update")

    def closure(self, packages: Sequence[str]) -> list[str]:
        """The packages, and of what they depend on whatever is not installed at a usable version."""
        plan = run("apt-get", *self.options, "-s", "--no-install-recommends", "install", *packages)
        # "[" follows for mere upgrades of what is installed
        return sorted(set(re.findall(r"^Inst (\S+) (?!\[)", plan, re.MULTILINE)))

    def download(self, packages: Sequence[str]) -> list[Path]:
        """``apt-get download`` the packages; return the .deb files, in the same order."""
        into = self.directory / "dl"
        into.mkdir(parents=True, exist_ok=True)
        if not packages:
            return []  # apt-get takes no names for a mistake
        if os.geteuid() == 0 and "APT::Sandbox::User=root" not in self.options:
            shutil.chown(into, DOWNLOADER)
        run("apt-get", *self.options, "download", *packages, cwd=into)
        files = []
        for package in packages:
            found = sorted(into.glob(f"{package.split('=')[0]}_*.deb"), key=lambda path: path.stat().st_mtime)
            if not found:
                raise BuildError(f"apt-get download left no file for {package}")
            files.append(found[-1])
        return files

    def unpack(self, packages: Sequence[str], root: Path) -> None:
        """Download packages, and unpack them below a directory that :func:`merged_usr` has made."""
        for deb in self.download(packages):
            unpack(deb, root)
            deb.unlink()


def open_to_others(directory: Path) -> bool:
    """Whether any user may enter a directory, of which not all need be there yet. What apt downloads for root it
    downloads as a user of its own (apt.conf(5): APT::Sandbox::User), who has to."""
    there = (path for path in (directory, *directory.parents) if path.exists())
    return all(path.stat().st_mode & stat.S_IXOTH for path in there)


def wrong_with_null() -> str:
    """What is wrong with /dev/null, and the remedy; empty: nothing. Where apt's own user cannot open it, apt finds no
    signature good, and says that gpgv is not installed."""
    try:
        found = NULL.stat()
    except FileNotFoundError:
        what = "does not exist"
    else:
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != os.makedev(1, 3):
            what = "is not the null device"
        elif found.st_mode & 0o666 != 0o666:
            what = f"is not open to every user (its mode is {stat.S_IMODE(found.st_mode):04o})"
        else:
            return ""
    return f"{NULL} {what}; the remedy, as root: rm -f {NULL}; mknod -m 666 {NULL} c 1 3"


def _mirror(name: str, otherwise: str) -> str:
    """The mirror of Debian's archive ``name`` that the host uses."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    text = "\n".join(file.read_text() for file in files if file.is_file())
    found = re.search(rf"^(?:URIs:|deb(?: \[[^]]*\])?)\s+(https?://\S*/{name})/?(?:\s|$)", text, re.MULTILINE)
    return found[1] if found else otherwise


def unpack(deb: Path, root: Path) -> None:
    """Unpack a .deb below ``root``, through the merged-/usr links there (dpkg -x replaces them by directories)."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as archive:
        _tar = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(root)]
        status = subprocess.run(_tar, stdin=archive.stdout, check=False).returncode
    if status or archive.returncode:
        raise BuildError(f"cannot unpack {deb}")


def merged_usr(root: Path) -> None:
    """Make ``root`` an empty tree with Debian's merged /usr: /bin, /sbin, /lib, /lib64 are links into /usr."""
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
