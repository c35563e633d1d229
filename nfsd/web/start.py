"""Begins to serve metrics and the page where the configuration says. Owns :func:`start_web`; imports the application,
its endpoint and the configuration.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable

from prometheus_client.registry import Collector

from nfsd.config import Address, Metrics, split_host_port
from nfsd.web.app import App, Question
from nfsd.web.endpoint import start_endpoint

_log = logging.getLogger(__name__)


def start_web(
    settings: Metrics, collectors: Iterable[Collector], statistics: Question, readiness: Question
) -> tuple[App, int, Callable[[], None]] | None:
    """The application, the port that it has, and what ends it; None if there is to be none. If it cannot have its
    address, the log says so, and the port is 0."""
    if settings.listen is None:
        return None
    host, port = split_host_port(settings.listen)
    names = list(settings.names)
    if not ipaddress.ip_address(host).is_loopback:
        names.append(socket.gethostname())
    app = App(asyncio.get_running_loop(), collectors, statistics, readiness, names=names)
    try:
        close, port = start_endpoint(app, host, port)
    except OSError as error:
        _log.error("cannot serve metrics on %s: %s", settings.listen, error.strerror)
        return app, 0, lambda: None
    return app, port, close


def shown(settings: Metrics, port: int) -> str:
    """Where metrics and the page are served, as the ready line has it; empty if they are not."""
    if settings.listen is None or not port:
        return ""
    return f" metrics {Address('http', split_host_port(settings.listen)[0], port)}"
