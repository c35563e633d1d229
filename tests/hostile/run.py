"""Runs one attack at a time, and checks what the honest client notices and what the server uses.

The criteria are no times, except patience with a busy machine: see :meth:`Outcome.faults`.
"""

from __future__ import annotations

import json
import math
import os
import queue
import resource
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

from tests.hostile.attack import Attack, Scene
from tests.hostile.server import HONEST, MEMORY, REPO, Server
from tests.hostile.watch import Use, Watch, remembered
from tests.support.kdc import Realm

MIB = 1 << 20
OVERHEAD = 160 << 20
"""Octets the server may use beyond ``limits.memory``: NFSv4's state, connections' own buffers, the replay cache."""
KEPT = 192 << 20
"""Octets the server may keep after an attack: state whose lease runs, caches at their full size."""
STATE = 128 << 20
"""Octets of NFSv4's state: an eighth of the default, for attacks that fill it."""
MOST_LINES = 200
"""Log lines of one attack."""
MORE_SOCKETS = 20
"""That there may be after an attack: of honest connections in the making."""
BEFORE = 0.3
"""Seconds the honest client is watched before."""
PATIENCE = 30.0
"""Seconds for what should take none."""


class HonestCall(NamedTuple):
    """One line of :mod:`tests.hostile.honest`."""

    user: str
    call: str
    began: float
    ended: float
    failure: str


class Honest:
    """The honest client's process; use as a context manager."""

    def __init__(self, server: Server) -> None:
        doors = server.doors
        ports = [str(address[1]) for address in (doors.tcp, doors.rdma, doors.mountd)]
        ticket = [] if server.realm is None else [server.realm.ticket("honest")["KRB5CCNAME"]]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.honest", HONEST, *ports, *ticket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=REPO,
            env=os.environ | {"PYTHONPATH": str(REPO)},
        )
        self.calls: list[HonestCall] = []
        self._settled: queue.Queue[None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = json.loads(line)
            if words == ["settled"]:
                self._settled.put(None)
            else:
                self.calls.append(HonestCall(*words))

    def say(self, word: str) -> None:
        """``pause`` or ``resume``."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")

    def settle(self, patience: float = 8 * PATIENCE) -> None:
        """Wait until every user has made each call again. Raises queue.Empty."""
        self.say("settle")
        self._settled.get(timeout=patience)

    def take(self) -> list[HonestCall]:
        """The calls that were over since the last time."""
        calls, self.calls = self.calls, []
        return calls

    def __enter__(self) -> Honest:
        self._reader.start()
        self.settle()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._process.stdout.close()  # type: ignore[union-attr]


def percentile(calls: list[HonestCall]) -> float:
    """The 99th, in seconds."""
    times = sorted(call.ended - call.began for call in calls)
    return times[math.ceil(len(times) * 0.99) - 1] if times else math.nan


@dataclass
class Outcome:
    """What came of an attack."""

    attack: Attack
    before: list[HonestCall]
    during: list[HonestCall]
    used: Use
    """By the server, before."""
    after: Use
    log: bytes
    idle: bool
    """Whether the server came to rest."""
    alive: bool
    found: list[str] = field(default_factory=list)
    """What the attack itself has seen that must not be."""
    made: dict[str, int] = field(default_factory=dict)
    """What it got done."""
    remembered: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))
    """By the server before, and at the end of the attack: of one that is to reach a bound."""

    @property
    def reached(self) -> bool | None:
        """Whether it has reached its bound; None: it has none."""
        return None if self.attack.bound is None else self.attack.bound(*self.remembered)

    @property
    def bound(self) -> str:
        """Likewise, in words, with what the server counts."""
        if self.reached is None:
            return ""
        before, end = self.remembered
        refused = end["refusals"] - before["refusals"]
        counted = ", ".join(f"{end[kind]} {kind}" for kind in ("clients", "sessions", "stateids"))
        return f"{'yes' if self.reached else 'no'}: {end['octets'] / MIB:.0f} MiB, {counted}; {refused} refusals"

    @property
    def failures(self) -> list[HonestCall]:
        """Calls of the honest client that got no answer, or a wrong one."""
        return [call for call in self.during if call.failure]

    @property
    def lines(self) -> int:
        """Of the log."""
        return self.log.count(b"\n")

    def faults(self) -> list[str]:
        """What must not be."""
        told = [f"{call.user} {call.call}: {call.failure}" for call in self.failures]
        faults = [f"{len(told)} calls of the honest client failed: {'; '.join(told[:5])}"] if told else []
        if not self.alive:
            faults.append("the server is gone")
        if not self.made.get(self.attack.effect):
            faults.append(f"the attack was none: {self.attack.effect} 0, {self.made}")
        if self.reached is False:
            faults.append(f"the bound was not reached: {self.bound}")
        if self.after.peak > max(self.used.resident, 128 << 20) + MEMORY + OVERHEAD:
            faults.append(f"{self.after.peak >> 20} MiB resident")
        if self.after.resident > self.used.resident + KEPT:
            faults.append(f"{self.after.resident >> 20} MiB resident afterwards")
        if self.lines > MOST_LINES:
            faults.append(f"{self.lines} lines in the log")
        if b"Traceback" in self.log:
            at = self.log.index(b"Traceback")
            faults.append(f"a traceback in the log: …{self.log[at : at + 3000].decode(errors='replace')}")
        if not self.idle:
            faults.append(f"no rest although nobody calls: busy, or with {self.after.sockets} sockets")
        return faults + self.found

    @property
    def row(self) -> list[str]:
        """Of the table."""
        verdict = "holds" if not self.faults() else "; ".join(fault[:120] for fault in self.faults())
        return [
            self.attack.layer,
            f"{self.attack.name}: {self.attack.description}",
            f"{percentile(self.before) * 1e3:.1f}",
            f"{percentile(self.during) * 1e3:.1f}",
            f"{len(self.failures)} of {len(self.during)}",
            *(str(octets >> 20) for octets in (self.used.resident, self.after.peak, self.after.resident)),
            str(self.lines),
            self.bound,
            verdict,
        ]


HEADINGS = [
    "layer", "attack", "p99 before, ms", "p99 during, ms", "honest calls failed", "RSS before, MiB", "peak", "after",
    "log lines", "bound reached", "verdict",
]  # fmt: skip


class Stage:
    """A server, an honest client, and one attack after the other; use as a context manager."""

    def __init__(self, realm: Realm | None = None) -> None:
        """``realm``: that of users who are known by Kerberos, the honest client's among them."""
        self.realm = realm

    def __enter__(self) -> Stage:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limits = soft, hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.server = Server(f"octets: {STATE}", self.realm).__enter__()
        try:
            self.watch = Watch(self.server.process.pid, self.server.log)
            self.honest = Honest(self.server).__enter__()
        except BaseException as error:
            self.server.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.honest.__exit__(kind, error, trace)
        finally:
            self.server.__exit__(kind, error, trace)
            resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def run(self, attack: Attack, seconds: float) -> Outcome:
        """Watch a little, attack for ``seconds`` and as long as it takes the honest client to make each call, and watch
        what remains."""
        honest, watch = self.honest, self.watch
        honest.take()
        time.sleep(BEFORE)
        before = honest.take()
        used = watch.begin()
        metrics = self.server.doors.metrics
        state = [remembered(metrics)] if attack.bound else []
        scene = Scene(self.server)
        with scene:
            attacking = threading.Thread(target=self._attack, args=(attack, scene), daemon=True)
            attacking.start()
            began = time.monotonic()
            try:
                attacking.join(seconds)
                patience = 4 * PATIENCE if attack.bound else PATIENCE
                while attacking.is_alive() and scene.building and time.monotonic() < began + patience:
                    attacking.join(0.1)
                # With everything the attack has in place: whoever is held up until it ends fails.
                honest.settle()
                state += [remembered(metrics)] if attack.bound else []
            finally:
                scene.end()
                attacking.join(2 * PATIENCE)
            assert not attacking.is_alive(), f"{attack.name} does not end"
        honest.settle()
        during = honest.take()
        honest.say("pause")
        idle = not self.server.alive or watch.until_idle(used.sockets + MORE_SOCKETS, 2 * PATIENCE)
        watch.until_given_back(used.resident + KEPT, 2 * PATIENCE)
        after = watch.now()
        honest.say("resume")
        return Outcome(
            attack,
            before,
            during,
            used,
            after,
            watch.log_since(used),
            idle,
            self.server.alive,
            scene.found,
            scene.made,
            (state[0], state[1]) if attack.bound else ({}, {}),
        )

    @staticmethod
    def _attack(attack: Attack, scene: Scene) -> None:
        try:
            attack.run(scene)
        except Exception:
            scene.found.append(f"the attack failed: {traceback.format_exc()}")
