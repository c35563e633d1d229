"""HTTP for metrics and the page: in threads of its own, few at a time, none for long.

Owns :func:`start_endpoint`; imports the standard library only.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

_log = logging.getLogger(__name__)

MOST_SCRAPES: Final = 8
"""Connections at a time; beyond, one of the host that has most is closed."""
SCRAPE_SECONDS: Final = 10.0
"""How long one may last."""


class _Handler(WSGIRequestHandler):
    """One request: whoever asks is of no interest to the log."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class has it so)
        """Say nothing."""


class _Endpoint(ThreadingMixIn, WSGIServer):
    """HTTP, to few at a time and not for long: a thread each is not to be had for the asking."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._places = threading.BoundedSemaphore(MOST_SCRAPES)
        self._asking: dict[socket.socket, str] = {}  # whose they are, the oldest first
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Have the address; its name, for which HTTPServer would ask the DNS, is nobody's business."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give it a thread if one is free, or can be had from a host that has more of them; else close it."""
        host = client_address[0]
        if not self._places.acquire(blocking=False) and not self._make_room(host):
            self.shutdown_request(request)
            return
        self._asking[request] = host
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._let_go(request)
            raise

    def _make_room(self, host: str) -> bool:
        """Cut off the oldest connection of the host that has most, if that is more than ``host`` has; whether there is
        a place then, taken."""
        asking = list(self._asking.items())
        counts = Counter(owner for _, owner in asking)
        for request, owner in asking:
            if counts[owner] == max(counts.values()) > counts[host]:
                _cut_off(request)
                return self._places.acquire(timeout=1.0)
        return self._places.acquire(blocking=False)

    def _let_go(self, request: socket.socket) -> None:
        del self._asking[request]
        self._places.release()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer; who takes too long over asking or reading is cut off."""
        clock = threading.Timer(SCRAPE_SECONDS, _cut_off, (request,))
        clock.daemon = True
        try:
            clock.start()
            super().process_request_thread(request, client_address)
        finally:
            clock.cancel()
            self._let_go(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is the other's affair."""
        _log.debug("metrics: %s", client_address, exc_info=True)


def _cut_off(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def start_endpoint(app: Callable[..., Iterable[bytes]], host: str, port: int) -> tuple[Callable[[], None], int]:
    """Serve a WSGI application. Returns what ends it and the port in use. Raises OSError when the address cannot be
    had."""
    server = _Endpoint(host, port)
    server.set_app(app)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close, server.server_port
