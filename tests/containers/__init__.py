"""The container of deploy/Containerfile, built by buildah and run by podman.

``python -m tests.containers`` writes the transcripts of docs/containers.md again; test_container.py compares them.
Both need root, and the packages of ``host-packages.sh containers``.

Nothing comes from an image registry. mmdebstrap makes the base image, from the mirror that this Debian installs from.
The image has the name that the recipe asks for. Images lie in the lab, apart from the host's. Where pip is set up for
a registry of the place, the base image has those settings and that registry's certificate.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.transcripts import CONTAINER_BLOCK, REPO, Block, blocks, written
from tests.transcripts.stages import PATIENCE, Stage, put

PAGE = REPO / "docs/containers.md"
BUILD = "buildah bud -t rdma-nfsd -f deploy/Containerfile ."
"""As the page has it."""
LAB = Path(os.environ.get("RDMA_NFSD_LAB") or REPO / ".lab").resolve() / "containers"
CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")
UNIFIED = "mount --make-rprivate / && umount --lazy /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup"
"""For hosts that have control groups of both versions, which crun does not take."""


def _base() -> tuple[Path, str]:
    """The root of the base image as a tar archive, made once; and the name that the recipe has for it."""
    (name,) = re.findall(r"^ARG BASE=(\S+)$", (REPO / "deploy/Containerfile").read_text(), re.MULTILINE)
    suite = name.rpartition(":")[2].removesuffix("-slim")
    archive = LAB / f"{suite}.tar"
    if not archive.exists():
        mirror = subprocess.check_output([REPO / "tests/distributions/mirror.sh"], text=True).strip()
        hooks = []
        listed = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=False).stdout
        said = dict(re.findall(r"^.*?\.(cert|index-url)='(.*)'$", listed, re.MULTILINE))
        if certificate := said.get("cert"):
            hooks.append(f"--customize-hook=upload {certificate} /registry.pem")
            said["cert"] = "/registry.pem"
        if said:
            settings = "".join(f"{key} = {value}\n" for key, value in said.items())
            put(LAB / "pip.conf", f"[global]\n{settings}")
            hooks.append(f"--customize-hook=upload {LAB}/pip.conf /etc/pip.conf")
        new = archive.with_suffix(".new.tar")
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", *hooks, suite, new, mirror], check=True)
        new.rename(archive)
    return archive, name


def _limits() -> list[tuple[str, int]]:
    """Of a container, by their names: no more than is granted here."""
    wanted = (("nofile", resource.RLIMIT_NOFILE, 1 << 20), ("nproc", resource.RLIMIT_NPROC, 1 << 15))
    granted = [(name, most, resource.getrlimit(which)[1]) for name, which, most in wanted]
    return [(name, most if hard == resource.RLIM_INFINITY else min(hard, most)) for name, most, hard in granted]


class Engine:
    """buildah and podman, with images and containers of their own, and a runtime: crun or runc."""

    def __init__(self, runtime: str) -> None:
        self.mounts = UNIFIED if runtime == "crun" and not CONTROLLERS.exists() else "true"
        LAB.mkdir(parents=True, exist_ok=True)
        storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{LAB}/storage"\nrunroot = "{LAB}/run"\n'
        put(LAB / "storage.conf", storage)
        # podman asks for more than a host without CAP_SYS_RESOURCE may grant; buildah comes with bounds of its own.
        bounds = [f"{name}={value}:{value}" for name, value in _limits()]
        containers = f"[containers]\ndefault_ulimits = {json.dumps(bounds)}\n"
        if self.mounts == UNIFIED:
            containers += 'cgroups = "disabled"\n'
        put(LAB / f"{runtime}.conf", f'{containers}[engine]\nruntime = "{runtime}"\n')
        self.environment = {
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_STORAGE_CONF": f"{LAB}/storage.conf",
            "CONTAINERS_CONF": f"{LAB}/{runtime}.conf",
        }

    def build(self) -> None:
        """Build the image by the recipe; what has been built already is not built again."""
        archive, name = _base()
        environment = {**os.environ, **self.environment}
        there = subprocess.run(["podman", "image", "exists", name], env=environment, check=False)
        if there.returncode:
            subprocess.run(["podman", "import", "--quiet", archive, name], env=environment, check=True)
        subprocess.run(BUILD.replace("bud ", "bud --layers "), shell=True, cwd=REPO, env=environment, check=True)

    @contextmanager
    def stage(self, base: Path) -> Iterator[_Stage]:
        """Where the commands of the page run."""
        with ExitStack() as ends:
            yield _Stage(base, ends, mounts=self.mounts, **self.environment)


class _Stage(Stage):
    """A directory that stands for /srv/nfs, and the container."""

    starts = 0

    def run(self, command: str) -> str:
        served = self.home.parent / "nfs"
        if not served.exists():
            put(served / "hello.txt", "Hello over NFS.\n")
            put(self.home / "results.csv", "17,42\n")
            served.chmod(0o1777)
            self.ends.callback(super().run, "podman rm --force --time 5 nfs; podman volume rm --force rdma-nfsd-state")
        printed = super().run(command.replace("/srv/nfs", str(served)))
        if command.startswith(("podman run", "podman restart")):
            self.starts += 1
            self._wait()
        return printed

    def _wait(self) -> None:
        """Until the server that was started last is ready."""
        end = time.monotonic() + PATIENCE
        while super().run("podman logs nfs").count("rdma-nfsd ready: ") < self.starts:
            assert time.monotonic() < end, super().run("podman logs nfs")
            time.sleep(0.2)


def play(block: Block, engine: Engine, base: Path) -> str:
    """Run a transcript: its new text."""
    with engine.stage(base) as stage:
        return written([(command, stage.run(command)) for command, _ in block.steps])


def page_blocks() -> list[Block]:
    """The transcripts of the page."""
    return list(blocks(PAGE, CONTAINER_BLOCK))


def essence(text: str) -> str:
    """What must be the same in every run, beside what :func:`tests.transcripts.essence` leaves out."""
    return re.sub(r"\b[0-9a-f]{64}\b", "ID", text)


def default_engine() -> Engine:
    """With the runtime that takes the host as it is."""
    return Engine("crun" if CONTROLLERS.exists() else "runc")


def missing() -> str:
    """Install what lacks; why it cannot be had, or nothing."""
    if os.geteuid():
        return "only root can build and run it here"
    done = subprocess.run(
        [REPO / "tests/vm/host-packages.sh", "containers"],
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""
