"""The server as a process: its loop, its signals, and its messages to systemd.

Owns :func:`run`; imports the daemon and the supervisor, and :mod:`nfsd.command_line` imports this.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Final

import uvloop

from nfsd import sdnotify
from nfsd.config import Config
from nfsd.daemon import Daemon, StartError
from nfsd.faults.choosing import Faults
from nfsd.faults.rules import Rules
from nfsd.logs import set_up_logging
from nfsd.portions import Portion
from nfsd.supervising.process import inherit
from nfsd.supervising.running import supervise
from rpcrdma.firewall import Ticker, last_resort, spawn
from rpcrdma.log_limits import LIMIT

_log = logging.getLogger(__name__)

_GC_THRESHOLD: Final = 50_000
"""Objects between collections: a call makes few cycles, and a collection in the middle of calls delays them all."""


async def _serve(config: Config, strict: bool, portion: Portion | None, faults: Faults | None) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(last_resort)
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            _log.warning("a second signal: ending at once")
            logging.shutdown()
            os._exit(1)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if portion is not None:
        loop.add_reader(portion.leash, os._exit, 1)
    daemon = Daemon(config, strict=strict, portion=portion, faults=faults)
    loop.add_signal_handler(signal.SIGUSR1, daemon.log_in_flight)
    try:
        await daemon.start()
    except StartError as error:
        _log.error("cannot start: %s", error)
        return 1
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    reloads: set[asyncio.Task[None]] = set()

    async def reload() -> None:
        sdnotify.notify(RELOADING=1, MONOTONIC_USEC=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        await daemon.reload()
        sdnotify.notify(READY=1)

    def begin_reload() -> None:
        spawn(reload(), reloads)

    loop.add_signal_handler(signal.SIGHUP, begin_reload)
    if portion is None:
        # Whoever reads this may send signals from now on.
        print(daemon.ready_line, flush=True)
    sdnotify.notify(READY=1, STATUS=daemon.ready_line.removeprefix("rdma-nfsd ready: "))
    watchdog = _start_watchdog(loop)
    left_out = Ticker(loop, 5.0, LIMIT.flush)
    await stopping.wait()
    sdnotify.notify(STOPPING=1, STATUS="finishing calls in flight")
    _log.info("stopping")
    await daemon.stop()
    if watchdog is not None:
        watchdog()
    left_out.cancel()
    _log.info("stopped")
    return 0


def _start_watchdog(loop: asyncio.AbstractEventLoop) -> Callable[[], None] | None:
    """Tell systemd, from the event loop, that the event loop is alive. Returns what ends that."""
    interval = sdnotify.watchdog_seconds()
    if interval is None:
        return None

    def tick() -> None:
        sdnotify.notify(WATCHDOG=1)

    tick()
    return Ticker(loop, interval, tick).cancel


def run(config: Config, *, strict: bool = False, rules: Rules | None = None, rules_file: str = "") -> int:
    """Serve until SIGTERM or SIGINT; ``strict``: only if every export can be served; ``rules``: misbehave so. Returns
    the exit status: 0, or 1 when nothing was."""
    set_up_logging(config.server.log.level)
    if config.server.processes > 1:
        with asyncio.Runner() as runner:
            return runner.run(supervise(config, strict))
    return _run(config, strict, None, None if rules is None else Faults(rules, rules_file))


def run_portion(descriptor: int) -> int:
    """Be one of several processes that serve together, with what the supervisor has written there."""
    config, portion, strict = inherit(descriptor)
    set_up_logging(config.server.log.level, f"process {portion.index}")
    return _run(config, strict, portion, None)


def _run(config: Config, strict: bool, portion: Portion | None, faults: Faults | None) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, strict, portion, faults))
