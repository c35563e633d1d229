"""The supervisor as a process: its signals, and its messages to systemd. Owns :func:`supervise`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time

from nfsd import sdnotify
from nfsd.config import Config
from nfsd.supervising.supervisor import StartError, Supervisor
from rpcrdma.firewall import Ticker, last_resort, spawn

_log = logging.getLogger(__name__)


async def supervise(config: Config, strict: bool) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(last_resort)
    stopping, tasks = asyncio.Event(), set[asyncio.Task[None]]()
    supervisor = Supervisor(config, strict=strict)

    def stop() -> None:
        if stopping.is_set():
            _log.warning("a second signal: ending at once")
            supervisor.kill()
            logging.shutdown()
            os._exit(1)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGUSR1, supervisor.forward, signal.SIGUSR1)
    starting = asyncio.create_task(supervisor.start())
    ended = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((starting, ended), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
        await starting
    except asyncio.CancelledError:
        return 0
    except StartError as error:
        _log.error("cannot start: %s", error)
        return error.status

    async def reload() -> None:
        sdnotify.notify(RELOADING=1, MONOTONIC_USEC=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        try:
            await supervisor.requests.commands()["reload"]({})
        except ValueError as error:
            _log.error("not reloaded: %s", error)
        sdnotify.notify(READY=1)

    loop.add_signal_handler(signal.SIGHUP, lambda: spawn(reload(), tasks))
    print(supervisor.ready_line, flush=True)
    sdnotify.notify(READY=1, STATUS=supervisor.ready_line.removeprefix("rdma-nfsd ready: "))
    interval = sdnotify.watchdog_seconds()
    watchdog = Ticker(loop, interval, lambda: _watch(supervisor, 2 * interval)) if interval is not None else None
    await ended
    sdnotify.notify(STOPPING=1, STATUS="finishing calls in flight")
    _log.info("stopping")
    await supervisor.stop()
    if watchdog is not None:
        watchdog.cancel()
    _log.info("stopped")
    return 0


def _watch(supervisor: Supervisor, seconds: float) -> None:
    sdnotify.notify(WATCHDOG=1)
    supervisor.check_signs_of_life(seconds)
