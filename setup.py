"""Build the Cython extensions: every .pyx of the two packages is one extension of the same name."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

extensions = [
    Extension(
        ".".join(source.with_suffix("").parts),
        [str(source)],
        extra_compile_args=["-O2", "-g1", "-fno-strict-aliasing", "-Wno-unused-function", "-Wno-sign-compare"],
        libraries=["pthread", "dl"],
    )
    for package in ("rpcrdma", "nfsd")
    for source in sorted(Path(package).rglob("*.pyx"))
]

setup(
    ext_modules=cythonize(
        extensions,
        quiet=True,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
        },
    )
)
