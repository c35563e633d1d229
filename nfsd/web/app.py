"""What is served by HTTP: ``/metrics``, ``/healthz``, ``/readyz``, and the page with its numbers. All is read-only.

Owns :class:`App`, a WSGI application. Imports nothing of the server: it is given what to ask. The page consists of
files of this package and asks nobody else for anything (Content-Security-Policy).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ipaddress
import json
from collections.abc import Awaitable, Callable, Collection, Iterable
from importlib.resources import files
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.registry import Collector

_PATIENCE: Final = 2.0
"""Seconds that the server's loop may take to answer."""
_FILES: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/grafana.json": ("grafana.json", "application/json"),
}
_HEADERS: Final = [
    ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
]
_JSON: Final = "application/json"
Environment = dict[str, Any]
Question = Callable[[], dict[str, Any] | Awaitable[dict[str, Any]]]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class App:
    """The application."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        collectors: Iterable[Collector],
        statistics: Question,
        readiness: Question,
        *,
        names: Collection[str] = (),
    ) -> None:
        """``statistics`` and ``readiness`` are asked on the loop. ``names``: what this host may be asked by, besides an
        address and localhost; ``*`` for any. A page from elsewhere, whose name was made to point here, is in a browser
        that may get here and asks by that name: it learns nothing."""
        registry = CollectorRegistry()
        for collector in collectors:
            registry.register(collector)
        ProcessCollector(registry=registry)  # descriptors, memory and CPU time, named as everywhere
        self._metrics = make_wsgi_app(registry)
        self._loop = loop
        self._statistics, self._readiness = statistics, readiness
        self._names = {_plain(name) for name in ("localhost", *names)}
        self._files = {path: ((files(__package__) / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}

    def __call__(self, environment: Environment, start: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        status, kind, body = self._answer(environment)
        if body is None:
            metrics: Iterable[bytes] = self._metrics(environment, start)
            return metrics
        start(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *_HEADERS])
        return [] if environment["REQUEST_METHOD"] == "HEAD" else [body]

    def _answer(self, environment: Environment) -> tuple[str, str, bytes | None]:
        """Status, type and content; None: metrics."""
        path = environment.get("PATH_INFO", "")
        if environment["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", "text/plain", b"this is read-only\n"
        if not self._is_here(environment.get("HTTP_HOST", "")):
            return "403 Forbidden", "text/plain", b"ask by address, or by a name in server.metrics.names\n"
        if path == "/metrics":
            return "", "", None
        if path in self._files:
            body, kind = self._files[path]
            return "200 OK", kind, body
        if path == "/stats.json":
            found = self._ask(self._statistics)
            return ("200 OK", _JSON, found) if found is not None else ("503 Service Unavailable", _JSON, b"{}")
        if path == "/healthz":
            alive = self._ask(dict) is not None
            return ("200 OK" if alive else "503 Service Unavailable"), _JSON, json.dumps({"alive": alive}).encode()
        if path == "/readyz":
            return self._ready()
        return "404 Not Found", "text/plain", b"there are /, /metrics, /stats.json, /healthz, /readyz, /grafana.json\n"

    def _is_here(self, host: str) -> bool:
        """Whether a Host header is an address, or a name of this host."""
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if not name or "*" in self._names or _plain(name) in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _ready(self) -> tuple[str, str, bytes]:
        found = self._ask(self._readiness)
        if found is None:
            return "503 Service Unavailable", _JSON, b'{"ready": false}'
        ready = json.loads(found)["ready"]
        return ("200 OK" if ready else "503 Service Unavailable"), _JSON, found

    def _ask(self, question: Question) -> bytes | None:
        """An answer of the server's loop, as JSON; None: it does not come."""

        async def answer() -> dict[str, Any]:
            found = question()
            return found if isinstance(found, dict) else await found

        coroutine = answer()
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            return None  # the loop is closed
        try:
            return json.dumps(future.result(_PATIENCE)).encode()
        except ValueError:
            return None  # of several processes none answers
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            future.cancel()
            return None


def _plain(name: str) -> str:
    """A host's name in the one spelling used for comparing."""
    return name.lower().rstrip(".")
