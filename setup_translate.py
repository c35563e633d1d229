"""Cython for many modules of one project: each declaration is read once, and not once for each module that uses it.

More than half of what Cython does for a module of ours is to read the .pxd files that it cimports, some dozens. Here
they are read before, by the process that setup.py is. A child of it then translates one module, and what it changes
ends with it.

Cython has no interface for that. Where its insides are others than these, or a .pxd is wrong, each module is translated
on its own, as ever, and Cython reports what there is to report.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from Cython.Build import Dependencies, cythonize
from Cython.Compiler import Errors
from Cython.Compiler.Main import CompilationOptions, Context
from setuptools import Extension

FEW = 4
"""So many modules are translated sooner than all declarations are read."""

SECTION = re.compile(r"^(?=/\* #### Code section: )", re.MULTILINE)
HELPER = re.compile(r"^(?=/\* [A-Z]\w*(?: \(used by \w+\))? \*/$)", re.MULTILINE)
"""Lines by which Cython tells the parts of a C file, and one helper from the next."""

RARE = re.compile(
    r"/\* (#### Code section: init_"
    r"|(Add|CLineIn)Traceback|CodeObjectCache|Raise|FormatTypeName|GivenExceptionMatches|PyErrExceptionMatches|IgnoreException"
    r"|(Type|Function|VoidPtr)?Import|GetVTable|SetVTable|MergeVTables|ValidateBasesTuple|PyType_Ready|GetTypeDictOffset"
    r"|ParseKeywords|RejectKeywords|DecompressString|CheckBinaryVersion|GetRuntimeVersion|AddModuleRef|GetBuiltinName"
    r"|MultiPhaseInitModuleState|UnpackUnboundCMethod|CallUnboundCMethod|Coroutine)"
)
"""How those parts and helpers begin that run when a module is loaded, something fails, or arguments have names."""

UNOPTIMIZED = tuple(
    f"#ifndef __clang__\n#pragma GCC {what}\n#endif\n"
    for what in ("push_options\n#pragma GCC optimize (0)", "pop_options")
)

Task = tuple[Any, ...]
"""The arguments that Cython's own cythonize_one takes: the .pyx file first."""


class Declarations(NamedTuple):
    """Of all .pxd files, as Cython has read them."""

    context: Context
    files: dict[str, str]
    """Where they were read, by the names of their modules."""


def translate(extensions: list[Extension], processes: int, directives: dict[str, Any]) -> list[Extension]:
    """What ``cythonize`` does, with so many processes. Exits where a module cannot be translated."""
    tasks: list[Task] = []
    one = Dependencies.cythonize_one
    Dependencies.cythonize_one = lambda *task: tasks.append(task)
    try:
        translated: list[Extension] = cythonize(extensions, quiet=True, compiler_directives=directives)
    finally:
        Dependencies.cythonize_one = one
    # What Cython makes of a module it uses to the end, which comes soon: looking for garbage takes a seventh longer.
    gc.disable()
    read = None
    if len(tasks) > FEW:
        roots = sorted({source.partition("/")[0] for source, *_ in tasks})
        read = _declarations(roots, CompilationOptions(compiler_directives=directives, include_path=["."]))
    # The longest first, so that none is left to one processor at the end.
    tasks.sort(key=lambda task: os.path.getsize(task[0]), reverse=True)
    _in_children(processes, [lambda task=task: _translate(one, task, read) for task in tasks])
    gc.enable()
    return translated


def _declarations(roots: Sequence[str], options: CompilationOptions) -> Declarations | None:
    """All .pxd files below these directories, as Cython has read them."""
    try:
        Errors.init_thread()
        Errors.reset()
        context = Context.from_options(options)
        for file in sorted(file for root in roots for file in Path(root).rglob("*.pxd")):
            if file.stem != "__init__":
                context.find_module(".".join(file.with_suffix("").parts))
        files = {name: os.path.abspath(nodes.pos[0].filename) for name, (nodes, _) in context.pxds.items()}
    except Exception:  # of whatever kind: this is a matter of time, not of the result
        return None
    return None if Errors.get_errors_count() else Declarations(context, files)


def _translate(one: Callable[..., None], task: Task, read: Declarations | None) -> None:
    """Translate one module, in a child: the context is changed by it."""
    if read is not None:
        context, files = read
        needed = {os.path.abspath(file) for file in Dependencies.create_dependency_tree().all_dependencies(task[0])}
        # Cython puts the functions of all declarations in its sight into the module.
        context.pxds = {name: nodes for name, nodes in context.pxds.items() if files[name] in needed}
        Context.from_options = lambda options: context
    one(*task)
    _rare_unoptimized(Path(task[1]))


def _rare_unoptimized(file: Path) -> None:
    """Have gcc not optimize what seldom runs of that which Cython adds to a module of its own.

    Half of a module's machine code is Cython's. To optimize what is rare of it takes gcc a tenth of its time.
    """
    before, after = UNOPTIMIZED
    parts = (part for section in SECTION.split(file.read_text()) for part in HELPER.split(section))
    file.write_text("".join(before + part + after if RARE.match(part) else part for part in parts))


def _in_children(processes: int, actions: list[Callable[[], None]]) -> None:
    """Run each action in a process of its own, and so many at a time. Exits after the first that fails."""
    running: set[int] = set()
    failed = False
    while running or (actions and not failed):
        if actions and not failed and len(running) < processes:
            sys.stdout.flush()
            sys.stderr.flush()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    actions[0]()
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            running.add(child)
            del actions[0]
        else:
            child, status = os.wait()
            running.discard(child)
            failed = failed or status != 0
    if failed:
        sys.exit("setup.py: Cython could not translate a module; what it says stands above")
