"""Build the guest: ``python -m tests.vm.build``.

Owns everything under the lab directory (``.lab`` in the clone, or ``$RDMA_NFSD_LAB``):

* ``pkgs/``   Debian packages that only the guest needs (NFS client and server tools, fio, rdma tools), unpacked,
  never installed;
* ``kernels/NAME/``  what qemu boots: a kernel of Debian's (:mod:`tests.vm.kernels`), and an initramfs that fits it;
* ``apt/``    lists of packages of other Debians (:mod:`tests.vm.packages`).

Each step leaves a stamp made from its inputs, and is skipped when the stamp fits: a lab that is complete costs no
network access and a few milliseconds. Nothing is written outside the lab directory, and no root right is needed.
"""

from __future__ import annotations

import argparse
import lzma
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.vm.kernels import DEFAULT, SUITES, build_kernel, kmod
from tests.vm.packages import BuildError, Suite, digest, merged_usr, progress, step, unpack

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

TOOL_PACKAGES = ("nfs4-acl-tools", "systemd", "dmsetup", "quota", "git")
"""Unpacked over the others, which stay as they are when a tool is added here."""

TLS_SUITE, TLS_PACKAGES, TLS_TREE = "trixie", ("ktls-utils",), "ktls-utils"
"""What makes a client's TLS handshakes for its kernel (tlshd). Debian 12 has none, so Debian 13's is in a tree of its
own with the libraries that it needs: a directory of the guest's root, for chroot(8)."""

INITRD_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_net", "virtio_console")


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


def chosen_kernel() -> str:
    """The name of the kernel that guests boot: ``$GUEST``, else the default. Raises BuildError for one that is none."""
    name = os.environ.get("GUEST") or DEFAULT
    if name not in SUITES:
        raise BuildError(f"GUEST={name}: no such kernel; there are {', '.join(SUITES)}")
    return name


def _build_pkgs(lab: Path) -> None:
    suite = Suite(lab)
    # busybox-static conflicts with the busybox some machines have installed, so it is not part of the resolved set.
    wanted = sorted({*suite.closure(GUEST_PACKAGES), "busybox-static", "kmod"})
    progress(f"guest packages: downloading {len(wanted)}")
    debs = suite.download(wanted)
    progress("guest packages: unpacking")
    root = lab / "pkgs"
    merged_usr(root)
    for deb in debs:
        unpack(deb, root)
        deb.unlink()
    (root / "var/lib/nfs/rpc_pipefs").mkdir(parents=True, exist_ok=True)
    for name in ("v4recovery", "sm", "sm.bak"):
        (root / "var/lib/nfs" / name).mkdir(parents=True, exist_ok=True)
    for name in ("etab", "rmtab", "state"):
        (root / "var/lib/nfs" / name).touch()


def _build_tools(lab: Path) -> None:
    suite = Suite(lab)
    wanted = suite.closure(TOOL_PACKAGES)
    progress(f"guest tools: downloading {len(wanted)}")
    suite.unpack(wanted, lab / "pkgs")


def _build_tls(lab: Path) -> None:
    suite = Suite(lab, TLS_SUITE)
    suite.update()
    wanted = suite.closure(TLS_PACKAGES)
    progress(f"guest's TLS: downloading {len(wanted)}")
    tree = lab / "pkgs" / TLS_TREE
    merged_usr(tree)
    suite.unpack(wanted, tree)


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


def _build_initrd(lab: Path, kernel: Path) -> None:
    """busybox, init, the agent, the modules that reach the 9p root; uncompressed, which TCG unpacks fastest."""
    release = (kernel / "release").read_text()
    modules: list[str] = []
    for name in INITRD_MODULES:
        plan = kmod(lab, "modprobe", "-d", lab / "pkgs", "-S", release, "--show-depends", name)
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
    (kernel / "initrd.img").write_bytes(_cpio(entries))


def build(name: str = "") -> Lab:
    """Bring the lab up to date for the kernel of a name, or the chosen one, and return it. Raises BuildError."""
    name = name or chosen_kernel()
    lab = lab_dir()
    lab.mkdir(parents=True, exist_ok=True)
    pkgs, kernel = lab / "pkgs", lab / "kernels" / name
    packages = digest(*GUEST_PACKAGES, "2")
    step(lab, "pkgs", packages, lambda: _build_pkgs(lab))
    step(lab, "tools", digest(packages, *TOOL_PACKAGES), lambda: _build_tools(lab))
    step(lab, f"kernel-{name}", digest(packages, SUITES[name], "3"), lambda: build_kernel(lab, name, pkgs))
    if name != DEFAULT:  # whose RPC knows no TLS
        step(lab, "tls", digest(packages, TLS_SUITE, *TLS_PACKAGES), lambda: _build_tls(lab))
    scripts = digest(Path(__file__).read_bytes(), (HERE / "init.sh").read_bytes(), (HERE / "agent.sh").read_bytes())
    step(lab, f"initrd-{name}", digest(packages, scripts, "3"), lambda: _build_initrd(lab, kernel))
    release = (kernel / "release").read_text()
    return Lab(release, str(kernel / "vmlinux"), str(kernel / "initrd.img"), str(pkgs))


def main() -> int:
    """Entry point of ``python -m tests.vm.build``."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm.build", description="Build the guest that tests boot.")
    parser.add_argument(
        "kernels", nargs="*", metavar="KERNEL", help=f"of {', '.join(SUITES)}; without one, $GUEST, or {DEFAULT}"
    )
    try:
        for name in parser.parse_args().kernels or [chosen_kernel()]:
            if name not in SUITES:
                parser.error(f"{name}: no such kernel; there are {', '.join(SUITES)}")
            lab = build(name)
            progress(f"guest ready: Linux {lab.kernel_version} in {lab_dir()}")
    except BuildError as error:
        print(f"guest build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
