"""The supervisor of several processes that serve together: starts them, keeps them going, and speaks for them.

A process that ends unasked is started again at once. If it ends again before it has served for a minute, the supervisor
waits longer each time. Its clients' connections wait in its sockets' queues meanwhile; those of the others notice
nothing. The supervisor kills a process that gives no sign of life (sd_notify(3)) any more, or does not serve in time.

Owns :class:`Supervisor`. Imports the rest of this package.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nfsd import state_dir
from nfsd.config import Config
from nfsd.config_file import ConfigError, load
from nfsd.control import Control
from nfsd.listeners import may_be_on_device
from nfsd.planned import Place, planned
from nfsd.portions import Portion
from nfsd.reloader import waiting_keys
from nfsd.settling import settle
from nfsd.supervising.process import Process, ended_how
from nfsd.supervising.relay import Relay
from nfsd.supervising.requests import Requests
from nfsd.supervising.totals import Process as Known
from nfsd.supervising.totals import Totals
from nfsd.vfs.handles import load_key
from nfsd.web.start import shown, start_web
from nfsd.without_file import NAME as COMMAND_LINE
from rpcrdma.firewall import spawn
from rpcrdma.rpc.rpcbind import Rpcbind, Service
from rpcrdma.server.spread import spread

_log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE, STEADY = 0.1, 30.0, 60.0
"""Seconds before a process is started again that has not served for the third of them: twice as long each time."""
TO_START: Final = 60.0
"""Seconds that a process may take until it serves, when the others serve already."""
_TO_STOP: Final = 10.0
"""Seconds that it may take to end, besides those for calls in flight."""
_KEY: Final = "handle.key"


class StartError(Exception):
    """The server cannot start; the text says why, ``status`` how it is to end."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


class Supervisor:
    """Several processes."""

    def __init__(self, config: Config, rpcbind: Rpcbind | None = None, *, strict: bool = False) -> None:
        self.config = config
        """That of processes that are started from now on."""
        self.state_dir, self.count = config.server.state_dir, config.server.processes
        self.processes = [Process(index, self.count, self.state_dir) for index in range(self.count)]
        self.requests = Requests(self)
        self.metrics_port = 0
        self._strict = strict
        self._rpcbind = rpcbind or Rpcbind()
        self._portion = Portion(0, self.count, self.state_dir)
        self._sockets: dict[Place, list[list[socket.socket]]] = {}
        """For each place, and each time that it is asked for, one of each process."""
        self._lock = -1
        self._leash = os.pipe()
        self._read_only = config.server.read_only
        self._stopping = self._serving = False
        self._restarting = asyncio.Lock()
        self._first_end: int | None = None
        self._pauses: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._undo: list[Callable[[], Awaitable[object] | None]] = []

    # -- the beginning and the end -------------------------------------------------------------------------------
    async def start(self) -> None:
        """Return once all serve. Raises StartError, with nothing left running."""
        try:
            self._prepare()
            self._listen()
            asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._look)
            for process in self.processes:
                process.open()
                self._start_process(process)
            await self._all_ready()
            self._serving = True
            await self._speak()
        except BaseException as error:
            await self.stop()
            if isinstance(error, OSError):
                raise StartError(f"{error.filename or self.state_dir}: {error.strerror or error}") from error
            raise

    def _prepare(self) -> None:
        try:
            self._lock = state_dir.take(self.state_dir)
        except state_dir.StateDirError as error:
            raise StartError(f"state_dir: {error}") from None
        settle(self.state_dir, self.count)
        load_key(self.state_dir)
        state_dir.identity(self.state_dir)
        for process in self.processes:
            os.makedirs(process.state_dir, mode=0o700, exist_ok=True)
            # One key for all: a handle is good with every process.
            _link(os.path.join(self.state_dir, _KEY), os.path.join(process.state_dir, _KEY))

    def _listen(self) -> None:
        entries = self.config.server.listen
        on_devices = frozenset(entry.url for entry in entries if may_be_on_device(entry))
        failed: dict[Place, int] = {}
        port = 0
        for key, place in planned(self.config):
            if place.kind == "rdma" and entries[int(key[-1])].url in on_devices:
                continue
            if place.kind == "udp" and place._replace(kind="tcp") in failed:
                continue
            # A datagram's port is that of the same service's connections.
            wanted = port if place.kind == "udp" else place.port
            kind = socket.SOCK_DGRAM if place.kind == "udp" else socket.SOCK_STREAM
            try:
                made = spread(place.host, wanted, self.count, kind)
            except OSError as error:
                failed[place] = error.errno or 0
                continue
            port = made[0].getsockname()[1]
            self._sockets.setdefault(place, []).append(made)
        self._portion = replace(self._portion, on_devices=on_devices, failed=failed)

    async def _all_ready(self) -> None:
        """Wait until all serve. Raises StartError if one ends before."""
        waiting = [asyncio.create_task(self._ready_or_ended(process)) for process in self.processes]
        try:
            await asyncio.gather(*waiting)
        finally:
            for task in waiting:
                task.cancel()
        self._check_ready(self.processes)  # one may have ended while the others were waited for

    async def _ready_or_ended(self, process: Process, patience: float | None = None) -> None:
        waiting = [asyncio.create_task(event.wait()) for event in (process.ready, process.ended)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=patience)
        for task in waiting:
            task.cancel()
        self._check_ready([process])

    def _check_ready(self, processes: Sequence[Process]) -> None:
        for process in processes:
            if not process.ready.is_set():
                raise StartError(f"process {process.index} does not serve", self._first_end or 1)

    async def _speak(self) -> None:
        """Begin to answer for all."""
        server = self.config.server
        control = Control(Relay(lambda: [process.state_dir for process in self.processes]), self.requests.commands())
        try:
            await control.start(self.state_dir)
        except OSError as error:
            _log.error("no control socket in %s: %s", self.state_dir, error.strerror)
        else:
            self._undo.append(control.close)
        totals = Totals(asyncio.get_running_loop(), self.requests.metrics, self._known)
        web = start_web(server.metrics, [totals], self.requests.statistics, self.requests.readiness)
        if web is not None:
            _, self.metrics_port, close = web
            # Its threads may be waiting for this loop.
            self._undo.append(lambda: asyncio.to_thread(close))
        if server.rpcbind and not server.portmapper:
            found = await self.requests.all("listening")
            services = [Service(*one) for answer in found.values() for one in answer["services"]]
            self._undo.append(self._rpcbind.unregister)
            await self._rpcbind.register(dict.fromkeys(services))

    async def stop(self) -> None:
        """End all processes, each of which answers what is in flight."""
        self._stopping, self._serving = True, False
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*map(self._end, self.processes))
        while self._undo:
            try:
                awaitable = self._undo.pop()()
                if awaitable is not None:
                    await awaitable
            except Exception:
                _log.exception("stopping goes on after a failure")
        for process in self.processes:
            process.close()
        for made in (made for times in self._sockets.values() for made in times):
            for sock in made:
                sock.close()
        for descriptor in (self._lock, *self._leash):
            if descriptor >= 0:
                os.close(descriptor)

    def kill(self) -> None:
        """End all processes at once."""
        for process in self.processes:
            process.signal(signal.SIGKILL)

    @property
    def ready_line(self) -> str:
        """What is served where."""
        lines = dict.fromkeys(process.status for process in self.processes)
        metrics = shown(self.config.server.metrics, self.metrics_port)
        return f"rdma-nfsd ready: {' | '.join(lines)}{metrics} ({self.count} processes)"

    # -- processes -----------------------------------------------------------------------------------------------
    def _start_process(self, process: Process) -> None:
        if self._stopping:
            raise StartError("the server is being stopped")
        server = self.config.server
        level = logging.getLevelName(logging.getLogger().level).lower()  # it may have been changed
        log = replace(server.log, level=level)  # type: ignore[arg-type]
        config = replace(self.config, server=replace(server, log=log))
        sockets = {place: [made[process.index].fileno() for made in times] for place, times in self._sockets.items()}
        own = replace(self._portion, index=process.index, sockets=sockets, leash=self._leash[0])
        portion = replace(own, read_only=self._read_only)
        process.start(config, portion, self._strict, (self._lock,))

    def _look(self) -> None:
        for process in self.processes:
            process.look(self._ended)

    def _ended(self, process: Process, status: int) -> None:
        if self._stopping or process.restarting:
            return
        if not self._serving:
            self._first_end = self._first_end or max(status, 1)
            return
        served = asyncio.get_running_loop().time() - process.started
        pause = 0.0
        if served < STEADY:
            pause = self._pauses[process.index] = min(
                2 * self._pauses.get(process.index, FIRST_PAUSE / 2), LONGEST_PAUSE
            )
        else:
            self._pauses.pop(process.index, None)
        _log.error(
            "process %d %s after %.0f s; it is started again in %.1f s: its clients reclaim, the others go on",
            process.index, ended_how(status), served, pause,
        )  # fmt: skip
        spawn(self._start_again(process, pause), self._tasks)

    async def _start_again(self, process: Process, pause: float) -> None:
        await asyncio.sleep(pause)
        if process.pid or process.restarting or self._stopping:
            return
        try:
            self._start_process(process)
        except OSError as error:
            _log.error("process %d cannot be started: %s", process.index, error)
            spawn(self._start_again(process, LONGEST_PAUSE), self._tasks)

    def check_signs_of_life(self, seconds: float) -> None:
        """Kill processes that have not given one for so long, and those that do not get through their start."""
        now = asyncio.get_running_loop().time()
        for process in self.processes:
            if process.ready.is_set() and now - process.heard > seconds:
                _log.error("process %d has given no sign of life for %.0f s", process.index, now - process.heard)
                process.signal(signal.SIGKILL)
            elif self._serving and process.pid and not process.ready.is_set() and now - process.started > TO_START:
                _log.error("process %d has been starting for %.0f s", process.index, now - process.started)
                process.signal(signal.SIGKILL)

    def forward(self, number: signal.Signals) -> None:
        """Pass a signal on to all that serve: it would end one that does not know it yet."""
        for process in self.processes:
            if process.ready.is_set():
                process.signal(number)

    async def restart(self, index: int | None) -> int:
        """Start processes again, one after the other; how many. Raises ValueError."""
        if index is not None and not 0 <= index < self.count:
            raise ValueError(f"no process {index}: there are 0 to {self.count - 1}")
        if self._restarting.locked():
            raise ValueError("processes are being restarted already")
        async with self._restarting:
            chosen = self.processes if index is None else [self.processes[index]]
            for process in chosen:
                _log.info("process %d is started again", process.index)
                process.restarting = True
                try:
                    await self._end(process)
                    self._start_process(process)
                    process.restarting = False
                    await self._ready_or_ended(process, TO_START)
                except (StartError, OSError) as error:
                    raise ValueError(f"{error}; the rest was left alone, the log says why") from None
                finally:
                    process.restarting = False
                    if not process.pid:
                        spawn(self._start_again(process, FIRST_PAUSE), self._tasks)
            return len(chosen)

    async def _end(self, process: Process) -> None:
        """Have it answer what is in flight, and end; or end it, if that takes too long."""
        process.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.ended.wait(), self.config.server.limits.drain_time + _TO_STOP)
        except TimeoutError:
            process.signal(signal.SIGKILL)
            await process.ended.wait()

    # -- what is asked (Requests) ----------------------------------------------------------------------------------
    def directories(self) -> Mapping[int, str]:
        """The state directory of each process that serves."""
        return {process.index: process.state_dir for process in self.processes if process.ready.is_set()}

    def lives(self) -> Mapping[int, int]:
        """How often each process has been started."""
        return {process.index: process.starts for process in self.processes}

    def rows(self) -> list[dict[str, Any]]:
        """A row of each process."""
        now = asyncio.get_running_loop().time()
        return [
            {
                "process": process.index,
                "pid": process.pid,
                "state": "serving" if process.ready.is_set() else "starting" if process.pid else "waiting",
                "seconds": round(now - process.started, 1),
                "restarts": max(0, process.starts - 1),
                "cpu": round(_cpu(process.pid), 2),
            }
            for process in self.processes
        ]

    def _known(self) -> Mapping[int, Known]:
        return {row["process"]: Known(row["state"] == "serving", row["restarts"], row["cpu"]) for row in self.rows()}

    def set_read_only(self, on: bool) -> None:
        """Remember for processes that are started from now on."""
        self._read_only = on
        self._renew()

    def drained(self, export: str) -> None:
        """Likewise that an export, by its name or directory, is not served until the configuration is read again."""
        named = [one for one in self.config.exports if one.pseudo == export]
        gone = named or [one for one in self.config.exports if one.path == export]
        self.config = replace(self.config, exports=tuple(one for one in self.config.exports if one not in gone[:1]))
        self._renew()

    def _renew(self) -> None:
        """Start those again that are being started: they know what was so before, and cannot be told yet."""
        for process in self.processes:
            if process.pid and not process.ready.is_set():
                process.signal(signal.SIGKILL)

    async def reload(self) -> None:
        """Take up the file for those that are started from now on. Raises ValueError."""
        if self.config.file == COMMAND_LINE:
            return
        try:
            config = await asyncio.to_thread(load, self.config.file)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        now, then = self.config.server, config.server
        if now.read_only != then.read_only:
            self._read_only = then.read_only
        for key in waiting_keys(now, then):
            _log.warning("server.%s has changed: that takes effect at the next start", key)
        server = replace(now, log=then.log, read_only=then.read_only, client_rate=then.client_rate)
        self.config = replace(config, server=server)
        logging.getLogger().setLevel(server.log.level.upper())
        self._renew()


def _link(key: str, name: str) -> None:
    """Give a file a second name, in place of what has that."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(key), os.lstat(name)):
            return
        os.unlink(name)
    os.link(key, name)


def _cpu(pid: int) -> float:
    """Seconds that a process has computed (proc_pid_stat(5))."""
    if not pid:
        return 0.0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
