"""Build the Cython extensions: every .pyx of the two packages is one extension of the same name.

They are compiled on all processors. ``RDMA_NFSD_EXTENSIONS=none`` leaves them out: the Makefile installs the package in
editable form that way, and builds them in place once, instead of a second time in a directory that pip throws away.
``RDMA_NFSD_EXTENSIONS=serve`` leaves out those of the load generator, which serving does not take.

Before that, formats are written for them that follow from the declarations (:mod:`rpcrdma.xdr.generate`).

Those of the provider over RDMA devices need the headers of libibverbs and librdmacm. Where these are absent, they are
left out, loudly: everything else works without them, and the server says what it lacks when it is asked for a device.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# Commands that only say or pack what there is need nothing translated or compiled.
WITHOUT_EXTENSIONS = {"sdist", "egg_info", "dist_info"}
CHOICE = os.environ.get("RDMA_NFSD_EXTENSIONS", "all")
PACKAGES = ("rpcrdma", "nfsd") if CHOICE == "serve" else ("rpcrdma", "nfsd", "bench")
# Packages with formats that are generated, which takes declarations and the reference codec, and no extension.
FORMATS = ("nfsd.wire", "rpcrdma.wire")
DEVICE = Path("rpcrdma/verbs/device")
WITHOUT_LIBRARIES = {DEVICE / "queue.pyx"}


def verbs_headers() -> bool:
    """Can programs be compiled and linked against libibverbs and librdmacm here?"""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "probe.c"
        source.write_text("#include <rdma/rdma_cma.h>\nint main(void) { return !rdma_create_event_channel(); }\n")
        command = [*os.environ.get("CC", "gcc").split(), str(source), "-o", f"{source}.out", "-libverbs", "-lrdmacm"]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False


def needs_verbs(source: Path) -> bool:
    """Is this one of the extensions over the RDMA libraries?"""
    return DEVICE in source.parents and source not in WITHOUT_LIBRARIES


def generate_formats() -> None:
    """Write the .pxd files that follow from the declarations, those that have changed."""
    root = str(Path(__file__).resolve().parent)
    # What is on the path already is pip's, which has the packages that a build needs there.
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "RPCRDMA_XDR": "reference", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-m", "rpcrdma.xdr.generate", *FORMATS], cwd=root, env=environment, check=True)


PROCESSORS = len(os.sched_getaffinity(0))
wanted = CHOICE != "none" and not WITHOUT_EXTENSIONS.intersection(sys.argv)
have_verbs = wanted and verbs_headers()
if wanted and not have_verbs:
    sys.stderr.write(
        "*** setup.py: no headers of libibverbs and librdmacm: building WITHOUT the provider over RDMA devices.\n"
        "*** For it: apt-get install libibverbs-dev librdmacm-dev, and build again. softiwarp needs neither.\n"
    )

extensions = [
    Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        extra_compile_args=["-O2", "-g1", "-fno-strict-aliasing", "-Wno-unused-function", "-Wno-sign-compare"],
        libraries=["pthread", "dl", *(["ibverbs", "rdmacm"] if needs_verbs(source) else [])],
    )
    for package in PACKAGES
    for source in sorted(Path(package).rglob("*.pyx"))
    if wanted and (have_verbs or not needs_verbs(source))
]
if wanted and not extensions:
    # Without this, an incomplete source tree becomes a package that installs and cannot be imported.
    sys.exit("setup.py: there is no .pyx file beside it: these are not the whole sources")
if wanted:
    generate_formats()
    # From Python 3.14 on, the processes that translate would be started anew otherwise, and run this file again.
    multiprocessing.set_start_method("fork", force=True)

setup(
    ext_modules=cythonize(
        extensions,
        quiet=True,
        nthreads=PROCESSORS,
        compiler_directives={
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
            "binding": False,
        },
    ),
    options={"build_ext": {"parallel": PROCESSORS}},
)
