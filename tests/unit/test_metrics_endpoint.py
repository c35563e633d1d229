"""The metrics endpoint to those who do not behave: few connections at a time, none for long, no question to the DNS."""

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, make_wsgi_app

from nfsd.web import endpoint


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(endpoint, "SCRAPE_SECONDS", 2.0)
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("the DNS is asked"))
    close, port = endpoint.start_endpoint(make_wsgi_app(CollectorRegistry()), "127.0.0.1", 0)
    yield port
    close()


def scrape(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return bytes(answer.read())


def connected(port: int, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 30, (source, 0))
    sock.sendall(sent)
    return sock


def threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_connections_that_say_nothing_hold_few_threads_and_not_for_long(port: int) -> None:
    silent = [connected(port, b"GET /metr") for _ in range(60)]
    try:
        deadline = time.monotonic() + 60
        most = 0
        while True:
            most = max(most, threads())
            try:
                scrape(port)
                break
            except OSError:
                assert time.monotonic() < deadline, "the silent ones keep the others out"
                time.sleep(0.1)
        assert most <= endpoint.MOST_SCRAPES
    finally:
        for sock in silent:
            sock.close()


def test_who_sends_an_octet_now_and_then_is_cut_off_all_the_same(port: int) -> None:
    with connected(port, b"GET /metrics HTTP/1.0\r\n") as sock:
        deadline = time.monotonic() + 60
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                sock.sendall(b"X")
                time.sleep(0.1)
                assert time.monotonic() < deadline, "it may go on for ever"


def test_one_host_does_not_keep_others_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SCRAPE_SECONDS", 600.0)
    with contextlib.ExitStack() as stack:
        for _ in range(3 * endpoint.MOST_SCRAPES):
            stack.enter_context(connected(port, b"GET /metr", "127.0.0.2"))
        for _ in range(2 * endpoint.MOST_SCRAPES):
            scrape(port)
        assert threads() <= endpoint.MOST_SCRAPES
