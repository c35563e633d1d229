"""The server as a process: its loop, its signals, and its messages to systemd.

Owns :func:`run`; imports the daemon, and :mod:`nfsd.cli` imports this.
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
from nfsd.logs import set_up_logging
from rpcrdma.firewall import Ticker, last_resort, spawn
from rpcrdma.log_limits import LIMIT

_log = logging.getLogger(__name__)

_GC_THRESHOLD: Final = 50_000
"""Objects between collections: a call makes few cycles, and a collection in the middle of calls delays them all."""


async def _serve(config: Config, strict: bool) -> int:
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
    daemon = Daemon(config, strict=strict)
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


def run(config: Config, *, strict: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; ``strict``: only if every export can be served. Returns the exit status: 0, or 1
    when nothing was."""
    set_up_logging(config.server.log.level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, strict))
