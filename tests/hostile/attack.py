"""What an attack is, and what it has to do with: the server's doors, addresses to come from, and a time to end.

An attack is bounded by :attr:`Scene.over`; whatever it leaves open in the scene is closed at its end.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Protocol

from tests.hostile.peer import EFFORT, Effort, Iwarp, Refused, Tcp, dial, ignoring, reset
from tests.hostile.server import Doors, Server

_addresses = itertools.count(2)
_strangers = itertools.count(2)


class Closable(Protocol):
    def close(self) -> None: ...


class Scene:
    """One attack's view of the server; a context manager that closes what :meth:`keep` was given."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.doors: Doors = server.doors
        self._over = threading.Event()
        self._building = 0
        self.found: list[str] = []
        """What the server did that it must not do."""
        self._counted: dict[str, int] = {}
        self._before = replace(EFFORT)
        self._open: list[Closable] = []
        self.source = self.address()

    # Where to come from

    @staticmethod
    def address() -> str:
        """An address that nobody has come from yet, of a host to which something is exported."""
        high, low = divmod(next(_addresses), 250)
        return f"127.0.{high}.{low + 2}"

    @staticmethod
    def stranger() -> str:
        """Likewise, of a host to which nothing is exported."""
        high, low = divmod(next(_strangers), 250)
        return f"127.9.{high}.{low + 2}"

    # How long

    @property
    def over(self) -> bool:
        return self._over.is_set()

    @property
    def building(self) -> bool:
        """Whether what it holds open is not all there yet."""
        return self._building > 0

    def end(self) -> None:
        """From now on it is over."""
        self._over.set()

    def rounds(self, most: int = 1 << 30) -> Iterator[int]:
        """0, 1, … until it is over."""
        for number in range(most):
            if self.over:
                return
            yield number

    def pause(self, seconds: float) -> None:
        """Until it is over, at most."""
        self._over.wait(seconds)

    # What to do

    def keep(self, thing: Any) -> Any:
        """Close it at the end."""
        self._open.append(thing)
        return thing

    def count(self, what: str, number: int = 1) -> None:
        """Something of which the attack consists was done."""
        self._counted[what] = self._counted.get(what, 0) + number

    @property
    def made(self) -> dict[str, int]:
        """What the attack got done, by kind: what was counted, and the fields of :class:`Effort`."""
        before = asdict(self._before)
        made = {name: value - before[name] for name, value in asdict(EFFORT).items()} | self._counted
        return {name: number for name, number in made.items() if number}

    def must(self, condition: bool, what: str) -> None:
        """Note a fault of the server."""
        if not condition and what not in self.found:
            self.found.append(what)

    def many(
        self, number: int, address: tuple[str, int], first: bytes = b"", *, source: str = "", window: int = 0,
        patience: float = 2.5,
    ) -> list[socket.socket]:  # fmt: skip
        """``number`` connections that have sent ``first``; fewer when the server takes no more, or it is over."""
        made: list[socket.socket] = []
        for _ in self._build(number):
            try:
                sock = dial(address, source or self.source, window=window, patience=patience)
            except OSError:
                self.count("not connected")
            else:
                made.append(self.keep(sock))
                with contextlib.suppress(OSError):
                    if first:
                        sock.sendall(first)
            if self.over:
                break
        return made

    def tcp(self, **how: Any) -> Tcp:
        """A connection to NFS. Raises OSError."""
        return self.keep(Tcp(self.doors.tcp, how.pop("source", self.source), **how))  # type: ignore[no-any-return]

    def iwarp(self, **how: Any) -> Iwarp:
        """A connection to NFS over RDMA, its handshake done. Raises OSError, EOFError and Refused."""
        return self.keep(Iwarp(self.doors.rdma, how.pop("source", self.source), **how))  # type: ignore[no-any-return]

    def iwarps(self, number: int, **how: Any) -> list[Iwarp]:
        """As many as there are to be had, and time for."""
        made = []
        for _ in self._build(number):
            with ignoring():
                made.append(self.iwarp(patience=2.5, **how))
            if self.over:
                break
        return made

    @contextlib.contextmanager
    def setting_up(self) -> Iterator[None]:
        """What is held open is made within this: the time of the attack begins then."""
        self._building += 1
        try:
            yield
        finally:
            self._building -= 1

    def _build(self, number: int) -> Iterator[int]:
        with self.setting_up():
            yield from range(number)

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thing in self._open:
            with contextlib.suppress(OSError):
                thing.close()


Bound = Callable[[Mapping[str, int], Mapping[str, int]], bool]
"""Whether a bound was reached: by the server's metric ``rdma_nfsd_state`` before and at the end, by kind."""


class Attack:
    """One way to be hostile. It must have an effect to be one: something that it has counted, or of :class:`Effort`."""

    def __init__(
        self, layer: str, name: str, description: str, run: Callable[[Scene], None], effect: str, bound: Bound | None
    ) -> None:
        self.layer, self.name, self.description, self.run = layer, name, description, run
        self.effect, self.bound = effect, bound

    def __str__(self) -> str:
        return self.name


ATTACKS: dict[str, Attack] = {}


def attack(
    layer: str, description: str, *, effect: str, bound: Bound | None = None
) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Make an attack of a function, named after it. ``effect``: what it must have made, or it was none. ``bound``: what
    it must reach; the server keeps what it has filled, so it is no use for others afterwards."""

    def enter(run: Callable[[Scene], None]) -> Callable[[Scene], None]:
        name = run.__name__.replace("_", "-")
        assert name not in ATTACKS, name
        ATTACKS[name] = Attack(layer, name, description, run, effect, bound)
        return run

    return enter


__all__ = ["ATTACKS", "Attack", "Bound", "Effort", "Refused", "Scene", "attack", "ignoring", "reset"]
