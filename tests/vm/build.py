"""Build the guest: ``python -m tests.vm.build``.

Owns everything under the lab directory (``.lab`` in the clone, or ``$RDMA_NFSD_LAB``):

* ``pkgs/``   Debian packages that only the guest needs (NFS client and server tools, fio, rdma tools), unpacked,
  never installed;
* ``kernel/`` Debian's kernel image and modules, unpacked, with ``siw.ko`` added, which Debian leaves unset;
* ``vmlinux``, ``initrd.img``, ``lab.json``  what qemu boots, and where it lies.

Each step leaves a stamp made from its inputs, and is skipped when the stamp fits: a lab that is complete costs no
network access and a few milliseconds. Nothing is written outside the lab directory, and no root right is needed.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent

GUEST_PACKAGES = (
    # the NFS client, and the kernel's own server: the reference that shows that a test script is right
    *("nfs-common", "nfs-kernel-server", "rpcbind", "keyutils"),
    # RDMA: providers, rdma(8), diagnostics, and an independent verbs peer
    *("ibverbs-providers", "ibverbs-utils", "rdmacm-utils", "python3-pyverbs", "iproute2"),
    # what the tests run
    *("fio", "e2fsprogs", "attr", "acl", "tcpdump", "kmod", "make", "gcc", "libc6-dev"),
)

TOOL_PACKAGES = ("nfs4-acl-tools", "systemd", "dmsetup")
"""Unpacked over the others, which stay as they are when a tool is added here."""

INITRD_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_net", "virtio_console")

_START = time.monotonic()


def progress(text: str) -> None:
    """Print one line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _START:.0f}s] {text}", flush=True)


class BuildError(Exception):
    """A step of the build failed; the message says which command and shows the end of its output."""


@dataclass(frozen=True)
class Lab:
    """What qemu needs to boot the guest. All paths are absolute."""

    kernel_version: str
    vmlinux: str
    initrd: str
    pkgs: str


def lab_dir() -> Path:
    """The lab directory: ``$RDMA_NFSD_LAB``, else ``.lab`` in the clone."""
    return Path(os.environ.get("RDMA_NFSD_LAB") or REPO / ".lab").resolve()


def _run(*argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
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


def _digest(*inputs: str | bytes) -> str:
    sha = hashlib.sha256()
    for item in inputs:
        sha.update(item.encode() if isinstance(item, str) else item)
        sha.update(b"\0")
    return sha.hexdigest()[:24]


def _step(lab: Path, name: str, inputs: str, action: Callable[[], None]) -> None:
    """Run ``action`` unless the stamp of step ``name`` already shows these ``inputs``."""
    stamp = lab / "stamps" / name
    if stamp.exists() and stamp.read_text() == inputs:
        return
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    action()
    stamp.write_text(inputs)


def _download(lab: Path, packages: list[str]) -> list[Path]:
    """``apt-get download`` the packages into the lab; return the .deb files, in the same order."""
    into = lab / "dl"
    into.mkdir(parents=True, exist_ok=True)
    if not packages:
        return []  # apt-get takes no names for a mistake
    _run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *packages, cwd=into)
    files = []
    for package in packages:
        found = sorted(into.glob(f"{package.split('=')[0]}_*.deb"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise BuildError(f"apt-get download left no file for {package}")
        files.append(found[-1])
    return files


def _missing_closure(packages: tuple[str, ...] | list[str]) -> list[str]:
    """The packages, and of what they depend on whatever the host does not already have at a usable version."""
    plan = _run("apt-get", "-s", "-q", "--no-install-recommends", "install", *packages)
    closure = re.findall(
        r"^Inst (\S+) (?!\[)", plan, re.MULTILINE
    )  # "[" follows for mere upgrades of what is installed
    return sorted(set(closure))


def _unpack(deb: Path, root: Path) -> None:
    """Unpack a .deb below ``root``, through the merged-/usr links there (dpkg -x replaces them by directories)."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as archive:
        _tar = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(root)]
        status = subprocess.run(_tar, stdin=archive.stdout, check=False).returncode
    if status or archive.returncode:
        raise BuildError(f"cannot unpack {deb}")


def _merged_usr(root: Path) -> None:
    """Make ``root`` an empty tree with Debian's merged /usr: /bin, /sbin, /lib, /lib64 are links into /usr."""
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")


def _build_pkgs(lab: Path) -> None:
    closure = _missing_closure(GUEST_PACKAGES)
    # busybox-static conflicts with the busybox some machines have installed, so it is not part of the resolved set.
    wanted = sorted({*closure, "busybox-static", "kmod"})
    progress(f"guest packages: downloading {len(wanted)}")
    debs = _download(lab, wanted)
    progress("guest packages: unpacking")
    root = lab / "pkgs"
    _merged_usr(root)
    for deb in debs:
        _unpack(deb, root)
        deb.unlink()
    (root / "var/lib/nfs/rpc_pipefs").mkdir(parents=True, exist_ok=True)
    for name in ("v4recovery", "sm", "sm.bak"):
        (root / "var/lib/nfs" / name).mkdir(parents=True, exist_ok=True)
    for name in ("etab", "rmtab", "state"):
        (root / "var/lib/nfs" / name).touch()


def _build_tools(lab: Path) -> None:
    wanted = _missing_closure(TOOL_PACKAGES)
    progress(f"guest tools: downloading {len(wanted)}")
    for deb in _download(lab, wanted):
        _unpack(deb, lab / "pkgs")
        deb.unlink()


def _kmod(lab: Path, tool: str, *argv: str | Path) -> str:
    """Run depmod or modprobe from the unpacked kmod package: the host needs none of its own."""
    libraries = ":".join(str(path) for path in (lab / "pkgs/usr/lib").glob("*-linux-gnu"))
    link = lab / tool  # kmod(8) is one program that goes by the name it is called with
    link.unlink(missing_ok=True)
    link.symlink_to("pkgs/usr/bin/kmod")
    try:
        return _run(link, *argv, env={"LD_LIBRARY_PATH": libraries})
    finally:
        link.unlink()


def _latest_kernel() -> tuple[str, str]:
    """(kernel release, package version) of the kernel that linux-image-amd64 stands for now."""
    depends = _run("apt-cache", "depends", "linux-image-amd64")
    match = re.search(r"Depends: linux-image-(\S+)", depends)
    if not match:
        raise BuildError("apt knows no linux-image-amd64: run 'apt-get update' as root, on Debian 12 (amd64)")
    release = match[1]
    policy = _run("apt-cache", "policy", f"linux-image-{release}")
    version = re.search(r"Candidate: (\S+)", policy)
    assert version
    return release, version[1]


def _build_kernel(lab: Path) -> None:
    """Unpack Debian's kernel and build siw.ko for it, out of tree, against headers that are unpacked too."""
    release, version = _latest_kernel()
    major = ".".join(release.split(".")[:2])
    flavour_free = re.sub(r"-amd64$", "", release)
    progress(f"kernel {release}: downloading image, headers and source")
    image, source, *headers = _download(
        lab,
        [
            f"linux-image-{release}={version}",
            f"linux-source-{major}={version}",
            f"linux-headers-{release}={version}",
            f"linux-headers-{flavour_free}-common={version}",
            f"linux-kbuild-{major}={version}",
        ],
    )
    progress(f"kernel {release}: unpacking")
    kernel = lab / "kernel"
    shutil.rmtree(kernel, ignore_errors=True)
    kernel.mkdir()
    _unpack(image, kernel)
    tree = lab / "headers"
    _merged_usr(tree)
    for deb in headers:
        _unpack(deb, tree)
    include = tree / "usr/src" / f"linux-headers-{release}"
    for makefile in (include / "Makefile", tree / "usr/src" / f"linux-headers-{flavour_free}-common" / "Makefile"):
        makefile.write_text(re.sub(r"(?<![\w.])/usr/(src|lib)/", rf"{tree}/usr/\1/", makefile.read_text()))

    progress("siw: unpacking its source from linux-source")
    work = lab / "siw"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(source)], stdout=subprocess.PIPE) as archive:
        inner = subprocess.Popen(
            ["tar", "-xO", "--wildcards", f"./usr/src/linux-source-{major}.tar.xz"],
            stdin=archive.stdout,
            stdout=subprocess.PIPE,
        )
        outer = ["tar", "-xJ", "--strip-components=5", "-C", str(work), "--wildcards", "*/drivers/infiniband/sw/siw/*"]
        status = subprocess.run(outer, stdin=inner.stdout, check=False).returncode
        inner.wait()
    if status or not (work / "siw_main.c").exists():
        raise BuildError("linux-source holds no siw driver")
    progress("siw: building")
    compiler = "gcc-12" if shutil.which("gcc-12") else "gcc"
    _run("make", "-s", "-C", include, f"M={work}", f"CC={compiler}", "CONFIG_RDMA_SIW=m", "modules")
    updates = kernel / "lib/modules" / release / "updates"
    updates.mkdir(parents=True, exist_ok=True)
    _run("strip", "-g", "-o", updates / "siw.ko", work / "siw.ko")
    _kmod(lab, "depmod", "-b", kernel, release)
    # The guest finds its modules where modprobe looks: in the package layer of its root.
    modules = lab / "pkgs/usr/lib/modules"
    shutil.rmtree(modules, ignore_errors=True)
    modules.mkdir(parents=True)
    os.rename(kernel / "lib/modules" / release, modules / release)
    progress("kernel: taking the ELF out of its compressed image")
    _extract_vmlinux(kernel / f"boot/vmlinuz-{release}", lab / "vmlinux")
    (lab / "release").write_text(release)
    for path in (kernel, tree, work):
        shutil.rmtree(path)
    for deb in (image, source, *headers):
        deb.unlink()


def _extract_vmlinux(image: Path, out: Path) -> None:
    """Write the ELF inside a bzImage.

    A PVH-capable ELF is booted by qemu directly; the kernel's own decompressor would take seconds under emulation.
    """
    data = image.read_bytes()
    formats: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
        (b"\xfd7zXZ\0", lambda packed: lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(packed)),
        (b"\x1f\x8b\x08", lambda packed: zlib.decompressobj(31).decompress(packed)),
    )
    for magic, decompress in formats:
        at = data.find(magic)
        while at >= 0:
            try:
                elf = decompress(data[at:])
            except (lzma.LZMAError, zlib.error):
                elf = b""
            if elf.startswith(b"\x7fELF"):
                out.write_bytes(elf)
                return
            at = data.find(magic, at + 1)
    raise BuildError(f"{image}: no ELF payload that this knows how to decompress")


def _cpio(entries: list[tuple[str, int, bytes]]) -> bytes:
    """A "newc" cpio archive of (name, mode, content): what the kernel takes as initramfs."""
    out = bytearray()
    for inode, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        raw = name.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0)
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + raw
        out += bytes(-len(out) % 4)
        out += content
        out += bytes(-len(out) % 4)
    return bytes(out)


def _build_initrd(lab: Path) -> None:
    """busybox, init, the agent, the modules that reach the 9p root; uncompressed, which TCG unpacks fastest."""
    release = (lab / "release").read_text()
    modules: list[str] = []
    for name in INITRD_MODULES:
        plan = _kmod(lab, "modprobe", "-d", lab / "pkgs", "-S", release, "--show-depends", name)
        modules += [line.split()[1] for line in plan.splitlines() if line.startswith("insmod")]
    directory, program, link = 0o040755, 0o100755, 0o120777
    entries = [(name, directory, b"") for name in ("bin", "modules")]
    entries += [
        ("bin/busybox", program, (lab / "pkgs/usr/bin/busybox").read_bytes()),
        ("bin/sh", link, b"busybox"),
        ("init", program, (HERE / "init.sh").read_bytes()),
        ("agent.sh", program, (HERE / "agent.sh").read_bytes()),
    ]
    names = []
    for path in dict.fromkeys(modules):
        raw = Path(path).read_bytes()
        name = Path(path).name.removesuffix(".xz")
        names.append(name)
        entries.append((f"modules/{name}", program, lzma.decompress(raw) if path.endswith(".xz") else raw))
    entries.append(("modules.list", 0o100644, "\n".join(names).encode()))
    (lab / "initrd.img").write_bytes(_cpio(entries))


def build() -> Lab:
    """Bring the lab up to date and return it. Raises BuildError."""
    lab = lab_dir()
    lab.mkdir(parents=True, exist_ok=True)
    recipe = Path(__file__).read_bytes()
    packages = _digest(*GUEST_PACKAGES, "2")
    _step(lab, "pkgs", packages, lambda: _build_pkgs(lab))
    _step(lab, "tools", _digest(packages, *TOOL_PACKAGES), lambda: _build_tools(lab))
    _step(lab, "kernel", _digest(packages, "2"), lambda: _build_kernel(lab))
    scripts = _digest(recipe, (HERE / "init.sh").read_bytes(), (HERE / "agent.sh").read_bytes())
    _step(lab, "initrd", _digest(packages, scripts), lambda: _build_initrd(lab))
    release = (lab / "release").read_text()
    result = Lab(release, str(lab / "vmlinux"), str(lab / "initrd.img"), str(lab / "pkgs"))
    (lab / "lab.json").write_text(json.dumps(asdict(result), indent=1) + "\n")
    return result


def main() -> int:
    """Entry point of ``python -m tests.vm.build``."""
    try:
        lab = build()
    except BuildError as error:
        print(f"guest build: {error}", file=sys.stderr)
        return 1
    progress(f"guest ready: Linux {lab.kernel_version} in {lab_dir()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
