"""``python -m bench.flames``: flame graphs of the server, one SVG per scenario and transport, from perf's samples.

The width of a frame is its share of the server's CPU time, with the kernel's. It has called the frames above it.
Needs perf (apt-get install linux-perf) and the right to use it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from zlib import crc32

from bench import document
from bench.scenarios import BY_NAME, needed, prepare
from bench.servers import RdmaNfsd
from bench.study import progress

SCENARIOS = (
    "getattr",
    "lookup",
    "read-4k-32",
    "write-4k-32",
    "open-v4.1",
    "open-close-v4.1",
    "read-1m-4",
    "write-1m-4",
)
PICTURES = document.DOCUMENT.parent / "flames"
WIDTH, HEIGHT = 1000, 15
LEAST = 0.004
"""Narrower frames, by their share of the whole, are left out."""
_CYTHON = re.compile(r"__pyx_(?:f|pw|pf|fuse_\d+)_(.*)")
_OUTERMOST = ("uv_run", "thread_main", "start_thread")
"""Where a stack begins: what is below is the same for all, and not always found."""


@dataclass(slots=True)
class Frame:
    """A function as called by those below, and how many samples were in it."""

    samples: int = 0
    calls: dict[str, Frame] = field(default_factory=dict)


def readable(symbol: str) -> str:
    """A function's name; Cython's have the lengths of modules and classes in them, and a method's number."""
    match = _CYTHON.match(symbol)
    if match is None:
        return symbol
    rest, parts = match[1], []
    while number := re.match(r"\d+", rest):
        at, size = number.end(), int(number[0])
        if rest[at + size : at + size + 1] != "_":
            rest = rest[at:]
            break
        parts.append(rest[at : at + size])
        rest = rest[at + size + 1 :]
    return ".".join([*parts[-1:], rest.lstrip("_")])


def cut(stack: list[str]) -> list[str]:
    """A stack without what is outside the loop or the thread."""
    begins = [stack.index(name) for name in _OUTERMOST if name in stack]
    return stack[min(begins) :] if begins else [name for name in stack if name != "[unknown]"]


def stacks(script: Iterable[str]) -> Iterator[list[str]]:
    """The stacks in what ``perf script -F ip,sym`` prints, each outermost first."""
    stack: list[str] = []
    for line in script:
        words = line.split(None, 1)
        if words:
            stack.append(readable(words[1].strip()) if len(words) > 1 else "?")
        elif stack:
            yield cut(stack[::-1])
            stack = []
    if stack:
        yield cut(stack[::-1])


def tree(found: Iterable[list[str]]) -> Frame:
    """All stacks put together."""
    root = Frame()
    for stack in found:
        frame = root
        frame.samples += 1
        for name in stack:
            frame = frame.calls.setdefault(name, Frame())
            frame.samples += 1
    return root


def svg(root: Frame, title: str) -> str:
    """The picture."""
    boxes: list[str] = []
    depth = _boxes(root, 0, 0, root.samples, boxes)
    height = (depth + 2) * HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="9">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/><text x="4" y="11">{escape(title)}</text>',
        f'<g transform="translate(0,{height})">',
        *boxes,
        "</g></svg>",
    ]
    return "\n".join(lines) + "\n"


def _boxes(frame: Frame, level: int, start: int, whole: int, boxes: list[str]) -> int:
    """Draw what was called from a frame. Returns the deepest level."""
    deepest = level
    for name, called in sorted(frame.calls.items()):
        if called.samples >= LEAST * whole:
            x, width = start * WIDTH / whole, called.samples * WIDTH / whole
            y, colour = -(level + 1) * HEIGHT, f"hsl({20 + crc32(name.encode()) % 40},85%,70%)"
            room = int(width / 5)
            label = name if len(name) <= room else name[: room - 1] + "…" if room > 3 else ""
            share = f"{100 * called.samples / whole:.1f} %"
            boxes.append(
                f'<g><title>{escape(name)}, {share}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" '
                f'height="{HEIGHT - 1}" fill="{colour}"/>'
                + (f'<text x="{x + 2:.1f}" y="{y + 10}">{escape(label)}</text>' if label else "")
                + "</g>"
            )
            deepest = max(deepest, _boxes(called, level + 1, start, whole, boxes))
        start += called.samples
    return deepest


def record(pid: int, seconds: float, frequency: int, data: Path) -> subprocess.Popen[bytes]:
    """Begin to sample a process."""
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(frequency), "--call-graph", "dwarf,16384"]
    return subprocess.Popen([*command, "-o", str(data), "-p", str(pid), "--", "sleep", str(seconds)])


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.flames", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(BY_NAME), default=SCENARIOS, metavar="NAME")
    parser.add_argument("--transport", nargs="*", choices=["tcp", "rdma"], default=["tcp", "rdma"])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each is sampled (default 2)")
    parser.add_argument("--frequency", type=int, default=499, help="samples per second (default 499)")
    parser.add_argument("--into", type=Path, default=PICTURES, help="a directory (default docs/flames)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server is ended all the same
    options.into.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rdma-nfsd-flames-") as directory:
        server = RdmaNfsd(Path(directory) / "server")
        data = Path(directory) / "perf.data"
        try:
            chosen = [BY_NAME[name] for name in options.only]
            files = asyncio.run(prepare(server, needs=needed(chosen)))
            for scenario in chosen:
                name = scenario.name
                for over in options.transport:
                    if over not in scenario.transports:
                        continue
                    progress(f"{name} over {over}")
                    scenario.fresh(server)
                    with scenario.load(server, files, over) as load:
                        load.run(0.3)
                        perf = record(server.process.pid, options.seconds, options.frequency, data)
                        load.run(options.seconds + 0.5)
                        if perf.wait():
                            raise SystemExit("perf failed")
                    script = subprocess.run(
                        ["perf", "script", "-i", str(data), "-F", "ip,sym", "--no-inline"],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        text=True,
                        check=True,
                    )
                    root = tree(stacks(script.stdout.splitlines()))
                    title = f"{name} over {over}: {root.samples} samples of the server"
                    (options.into / f"{name}-{over}.svg").write_text(svg(root, title))
        finally:
            server.stop()
    progress("")
    return 0


if __name__ == "__main__":
    sys.exit(main())
