"""The guest's kernels: Debian's, of several releases, each with the siw driver that Debian leaves out.

Owns ``kernels/NAME`` in the lab directory (what qemu boots), and the modules of each, in the package layer of the
guest's root. A kernel comes from the suite that carries it, with the compiler that it was built with: siw is built in a
tree of that suite's packages, which chroot(8) makes its root, so that nothing depends on the Debian that runs here.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.vm.packages import BuildError, Suite, merged_usr, progress, run

SUITES = {"6.1": "bookworm", "6.12": "trixie", "newest": "trixie-backports"}
"""The suite that carries each kernel, by the name that ``GUEST=`` takes."""

DEFAULT = "6.1"

_SHELL = ("dash", "bash", "coreutils", "findutils", "grep", "mawk", "sed", "make", "binutils", "zstd")
"""What a build of a kernel's module runs besides the compiler."""

OWN_DEV = Path(__file__).with_name("own-dev.sh")

_IN_TREE = """\
for name in proc sys; do
    mkdir -p "$1/$name"
    mount --rbind "/$name" "$1/$name"
done
"$3" "$1"
exec chroot "$1" /bin/sh -euc "$2"
"""


@dataclass(frozen=True)
class Kernel:
    """A kernel as Debian packages it."""

    release: str
    """As uname -r says it."""
    image: list[str]
    """The packages with its image and modules."""
    source: str
    headers: str


def series(release: str) -> str:
    """A release's first two numbers, which stay while Debian mends a kernel."""
    return ".".join(release.split(".")[:2])


def newest(suite: Suite) -> Kernel:
    """The kernel that linux-image-amd64 stands for now in a suite."""
    plan = suite.closure(["linux-image-amd64"])
    for package in plan:
        found = re.fullmatch(r"linux-image-(\d\S*-amd64)", package)
        if found:
            release = found[1]
            # From 7.3 on what one package held is in four.
            parts = [f"linux-{kind}-{release}" for kind in ("base", "image", "binary", "modules")]
            image = [name for name in parts if name in plan]
            return Kernel(release, image, f"linux-source-{series(release)}", f"linux-headers-{release}")
    raise BuildError(f"{suite.name}: no linux-image-amd64 that can be had; the guest is for amd64")


def in_tree(tree: Path, script: str) -> str:
    """Run a shell script whose root is a tree of unpacked packages, on this kernel; return its standard output."""
    namespaces = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        namespaces.insert(1, "--map-root-user")
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    return run(
        *namespaces, "sh", "-euc", _IN_TREE, "sh", tree, script, OWN_DEV, env={"PATH": f"{os.environ['PATH']}:{path}"}
    )


def build_kernel(lab: Path, name: str, root: Path) -> None:
    """Make the kernel of a name: its ELF in ``kernels/NAME``, its modules and siw below ``root``."""
    suite = Suite(lab, SUITES[name])
    progress(f"kernel {name}: asking {suite.name} for it")
    suite.update()
    kernel = newest(suite)
    release = kernel.release
    progress(f"kernel {release}: downloading image, headers, compiler and source")
    tree = lab / "headers" / name
    merged_usr(tree)
    suite.unpack(suite.closure([kernel.headers, *_SHELL]), tree)
    (tree / "usr/bin/awk").symlink_to("mawk")  # as its postinst would have done
    unpacked = lab / "unpacked" / name
    merged_usr(unpacked)
    suite.unpack(kernel.image, unpacked)
    (source,) = suite.download([kernel.source])

    progress(f"kernel {release}: building siw")
    _unpack_siw(source, kernel, tree / "siw")
    source.unlink()
    # Nobody asks siw which types it has (BTF).
    options = "CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES="
    in_tree(tree, f"make -s -C /usr/src/{kernel.headers} M=/siw {options} modules && strip -g /siw/siw.ko")
    modules = unpacked / "usr/lib/modules" / release
    (modules / "updates").mkdir(exist_ok=True)
    shutil.copy(tree / "siw/siw.ko", modules / "updates")
    kmod(lab, "depmod", "-b", unpacked, release)

    into = lab / "kernels" / name
    into.mkdir(parents=True, exist_ok=True)
    progress(f"kernel {release}: taking the ELF out of its compressed image")
    images = [unpacked / f"boot/vmlinuz-{release}", modules / "vmlinuz"]
    _extract_vmlinux(next(image for image in images if image.exists()), into / "vmlinux", tree)
    # The guest finds its modules where modprobe looks.
    there = root / "usr/lib/modules" / release
    shutil.rmtree(there, ignore_errors=True)
    there.parent.mkdir(parents=True, exist_ok=True)
    os.rename(modules, there)
    (into / "release").write_text(release)
    for path in (tree, unpacked):
        shutil.rmtree(path)


def kmod(lab: Path, tool: str, *argv: str | Path) -> str:
    """Run depmod or modprobe from the guest's kmod package: the host needs none of its own."""
    libraries = ":".join(str(path) for path in (lab / "pkgs/usr/lib").glob("*-linux-gnu"))
    link = lab / tool  # kmod(8) is one program that goes by the name it is called with
    link.unlink(missing_ok=True)
    link.symlink_to("pkgs/usr/bin/kmod")
    try:
        return run(link, *argv, env={"LD_LIBRARY_PATH": libraries})
    finally:
        link.unlink()


def _unpack_siw(source: Path, kernel: Kernel, into: Path) -> None:
    into.mkdir()
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(source)], stdout=subprocess.PIPE) as archive:
        inner = subprocess.Popen(
            ["tar", "-xO", "--wildcards", f"./usr/src/linux-source-{series(kernel.release)}.tar.xz"],
            stdin=archive.stdout,
            stdout=subprocess.PIPE,
        )
        outer = ["tar", "-xJ", "--strip-components=5", "-C", str(into), "--wildcards", "*/drivers/infiniband/sw/siw/*"]
        status = subprocess.run(outer, stdin=inner.stdout, check=False).returncode
        inner.wait()
    if status or not (into / "siw_main.c").exists():
        raise BuildError(f"{source.name} holds no siw driver")


def _extract_vmlinux(image: Path, out: Path, tree: Path) -> None:
    """Write the ELF inside a bzImage.

    A PVH-capable ELF is booted by qemu directly; the kernel's own decompressor would take seconds under emulation.
    """
    data = image.read_bytes()

    def zstd(packed: bytes) -> bytes:
        (tree / "packed").write_bytes(packed)
        # What follows the frame is none, and zstd says so when it has written what is.
        in_tree(tree, "zstd -dcq /packed >/unpacked || [ -s /unpacked ]")
        return (tree / "unpacked").read_bytes()

    formats: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
        (b"\xfd7zXZ\0", lambda packed: lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(packed)),
        (b"\x1f\x8b\x08", lambda packed: zlib.decompressobj(31).decompress(packed)),
        (b"\x28\xb5\x2f\xfd", zstd),
    )
    for magic, decompress in formats:
        at = data.find(magic)
        while at >= 0:
            try:
                elf = decompress(data[at:])
            except (lzma.LZMAError, zlib.error, BuildError):
                elf = b""
            if elf.startswith(b"\x7fELF"):
                out.write_bytes(elf)
                return
            at = data.find(magic, at + 1)
    raise BuildError(f"{image}: no ELF payload that this knows how to decompress")
