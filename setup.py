"""Build the Cython extensions: every .pyx of the two packages is one extension of the same name.

They are translated (:mod:`setup_translate`) and compiled on all processors.
``RDMA_NFSD_EXTENSIONS=none`` leaves them out: the Makefile installs the package in editable form that way, and builds
them in place once, instead of a second time in a directory that pip throws away.
``RDMA_NFSD_EXTENSIONS=serve`` leaves out those of the load generator, which serving does not take.

Before that, formats are written for them that follow from the declarations (:mod:`rpcrdma.xdr.generate`).

Those of the provider over RDMA devices need the headers of libibverbs and librdmacm, those of the backend for CephFS
libcephfs's, that of stable storage in RADOS librados's. Where these are absent, they are left out, and it is said:
everything else works without them, and the server says what it lacks when it is asked for a device, a file system or a
pool of Ceph's.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup

sys.path.insert(0, str(Path(__file__).resolve().parent))  # which pip, building a package, leaves out

from setup_translate import translate

# Commands that only say or pack what there is need nothing translated or compiled.
WITHOUT_EXTENSIONS = {"sdist", "egg_info", "dist_info"}
CHOICE = os.environ.get("RDMA_NFSD_EXTENSIONS", "all")
PACKAGES = ("rpcrdma", "nfsd") if CHOICE == "serve" else ("rpcrdma", "nfsd", "bench")
# Packages with formats that are generated, which takes declarations and the reference codec, and no extension.
FORMATS = ("nfsd.wire", "rpcrdma.wire")
DEVICE = Path("rpcrdma/verbs/device")
WITHOUT_LIBRARIES = {DEVICE / "queue.pyx"}
VERBS = ("ibverbs", "rdmacm")
CEPHFS = Path("nfsd/backends/cephfs")
RADOS = Path("nfsd/stable/rados")
LARGE = ("_FILE_OFFSET_BITS", "64")  # libcephfs's header insists on it


def links(header: str, call: str, libraries: tuple[str, ...]) -> bool:
    """Can programs that make this call be compiled and linked against these libraries here?"""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "probe.c"
        source.write_text(f"#include <{header}>\nint main(void) {{ return !{call}; }}\n")
        compiler = os.environ.get("CC", "gcc").split()
        options = ["-D{}={}".format(*LARGE), "-o", f"{source}.out", *(f"-l{library}" for library in libraries)]
        try:
            return subprocess.run([*compiler, str(source), *options], capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False


def needs_verbs(source: Path) -> bool:
    """Is this one of the extensions over the RDMA libraries?"""
    return DEVICE in source.parents and source not in WITHOUT_LIBRARIES


def libraries_of(source: Path) -> tuple[str, ...]:
    """Those of the operating system that an extension uses, which may be absent."""
    if needs_verbs(source):
        return VERBS
    return ("cephfs",) if CEPHFS in source.parents else ("rados",) if RADOS in source.parents else ()


def generate_formats() -> None:
    """Write the .pxd files that follow from the declarations, those that have changed."""
    root = str(Path(__file__).resolve().parent)
    # What is on the path already is pip's, which has the packages that a build needs there.
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "RPCRDMA_XDR": "reference", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-m", "rpcrdma.xdr.generate", *FORMATS], cwd=root, env=environment, check=True)


PROCESSORS = len(os.sched_getaffinity(0))
wanted = CHOICE != "none" and not WITHOUT_EXTENSIONS.intersection(sys.argv)
have_verbs = wanted and links("rdma/rdma_cma.h", "rdma_create_event_channel()", VERBS)
have_cephfs = wanted and links("cephfs/libcephfs.h", "ceph_version(0, 0, 0)", ("cephfs",))
have_rados = wanted and links("rados/librados.h", "rados_connect(0)", ("rados",))
if wanted and not have_verbs:
    sys.stderr.write(
        "setup.py: no headers of libibverbs and librdmacm: building without the provider over RDMA devices. For it:\n"
        "apt-get install libibverbs-dev librdmacm-dev, and build again. softiwarp needs neither.\n"
    )
if wanted and not have_cephfs:
    sys.stderr.write(
        "setup.py: no headers of libcephfs: building without the backend for CephFS, which few need (libcephfs-dev).\n"
    )
if wanted and not have_rados:
    sys.stderr.write(
        "setup.py: no headers of librados: building without stable storage in RADOS, which few need (librados-dev).\n"
    )
have = {VERBS: have_verbs, ("cephfs",): have_cephfs, ("rados",): have_rados, (): wanted}

# What makes -O2 worth while for calls into CPython (calls inlined, rare blocks out of the way), and none of the passes
# over values in registers and over pointers, which take gcc a third of its time. Modules in which common calls spend
# theirs ask for -O2 in their first line ("distutils:").
OPTIMIZED = [
    "-O1",
    "-finline-small-functions",
    "-fpartial-inlining",
    "-foptimize-sibling-calls",
    "-freorder-functions",
    "-freorder-blocks-algorithm=stc",
    "-freorder-blocks-and-partition",
    "-falign-functions",
    "-falign-jumps",
    "-falign-loops",
    "-fno-tree-dominator-opts",
    "-fno-tree-pta",
]
# Lines of C in what a debugger says, for those who ask for them: the C is generated, and writing them takes time, too.
DEBUGGING = "-g1" if "-g" in os.environ.get("CFLAGS", "").split() else "-g0"
extensions = [
    Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        extra_compile_args=[*OPTIMIZED, DEBUGGING, "-fno-strict-aliasing", "-Wno-unused-function", "-Wno-sign-compare"],
        define_macros=[LARGE] if CEPHFS in source.parents else [],
        libraries=["pthread", "dl", *libraries_of(source)],
    )
    for package in PACKAGES
    for source in sorted(Path(package).rglob("*.pyx"))
    if have[libraries_of(source)]
]
if wanted and not extensions:
    # Without this, an incomplete source tree becomes a package that installs and cannot be imported.
    sys.exit("setup.py: there is no .pyx file beside it: these are not the whole sources")
if wanted:
    generate_formats()

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
    # For inspect.signature, and so for mypy's stubtest.
    "embedsignature.format": "clinic",
    # Nothing here is pickled, and functions are as those of CPython's own extensions: with either otherwise,
    # compiling takes half as long again.
    "auto_pickle": False,
    "emit_code_comments": False,
    "binding": False,
}

translated = translate(extensions, PROCESSORS, DIRECTIVES)
for extension in translated:
    # Cython puts what a file asks for first, and gcc takes the last.
    extension.extra_compile_args.sort(key="-O2".__eq__)
# The longest first, as there, too.
translated.sort(key=lambda extension: os.path.getsize(extension.sources[0]), reverse=True)

setup(
    ext_modules=translated,
    options={"build_ext": {"parallel": PROCESSORS}},
)
