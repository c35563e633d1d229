"""The page, health and readiness on the metrics' port of a running server; and the Grafana dashboard."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nfsd.client import connect
from nfsd.config_file import load
from nfsd.web import app as web_app
from tests.support.browser import browser, needs_browser
from tests.unit.nfs_client_support import Rig
from tests.unit.test_top import WAYS
from tests.unit.test_top import load as work

METRICS = "  metrics: {listen: '127.0.0.1:0'}\n"
DASHBOARD = Path("nfsd/web/grafana.json")
Answer = tuple[int, Mapping[str, str], bytes]


async def get(rig: Rig, path: str, *, method: str = "GET", host: str = "") -> Answer:
    """One request."""

    def fetch() -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", rig.daemon.metrics_port, timeout=30)
        try:
            connection.request(method, path, headers={"Host": host} if host else {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    return await asyncio.to_thread(fetch)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path)
    made.extra += METRICS
    return made


def run(rig: Rig, test: Callable[[], Awaitable[None]]) -> None:
    rig.run(test)


def test_health_and_readiness_follow_the_server(rig: Rig) -> None:
    async def test() -> None:
        for path, word in (("/healthz", "alive"), ("/readyz", "ready")):
            status, headers, body = await get(rig, path)
            assert (status, json.loads(body)[word]) == (200, True)
            assert headers["Content-Type"] == "application/json"
        assert any("tcp://127.0.0.1" in one for one in json.loads((await get(rig, "/readyz"))[2])["listeners"])
        rig.daemon._serving = False  # it is being stopped, and clients should go elsewhere
        assert (await get(rig, "/readyz"))[0] == 503
        assert (await get(rig, "/healthz"))[0] == 200
        rig.daemon._serving = True

    run(rig, test)


def test_a_server_that_is_stuck_is_not_healthy_and_the_endpoint_says_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_app, "_PATIENCE", 0.3)

    async def test() -> None:
        answers: list[int] = []

        def ask() -> None:
            for path in ("/healthz", "/readyz", "/stats.json"):
                connection = http.client.HTTPConnection("127.0.0.1", rig.daemon.metrics_port, timeout=30)
                connection.request("GET", path)
                answers.append(connection.getresponse().status)
                connection.close()

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(60)  # the loop does nothing else meanwhile
        assert answers == [503, 503, 503]
        assert (await get(rig, "/healthz"))[0] == 200

    run(rig, test)


def test_everything_is_read_only_and_asks_nobody_else(rig: Rig) -> None:
    async def test() -> None:
        pages = {}
        for path in ("/", "/page.js", "/page.css", "/stats.json", "/grafana.json"):
            status, headers, body = await get(rig, path)
            assert status == 200, path
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'")
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            pages[path] = body.decode()
            assert (await get(rig, path, method="HEAD"))[2] == b""
            for method in ("POST", "PUT", "DELETE"):
                assert (await get(rig, path, method=method))[0] == 405
        for path in ("/", "/page.js", "/page.css"):
            found = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", pages[path])
            assert set(found) <= {"http://www.w3.org"}, "the name of SVG, and no other"
            assert "innerHTML" not in pages[path]
        assert "<script>" not in pages["/"]
        for path in ("/nothing", "/../etc/passwd", "/page.html"):
            assert (await get(rig, path))[0] == 404

    run(rig, test)


def test_a_page_from_elsewhere_whose_name_was_made_to_point_here_learns_nothing(rig: Rig) -> None:
    async def test() -> None:
        for host in ("127.0.0.1:9587", "localhost:9587", "[::1]:9587", "localhost"):
            assert (await get(rig, "/stats.json", host=host))[0] == 200, host
        for host in ("evil.example", "evil.example:9587", "127.0.0.1.evil.example", "[evil.example]"):
            for path in ("/stats.json", "/metrics", "/"):
                assert (await get(rig, path, host=host))[0] == 403, host

    run(rig, test)


@pytest.mark.parametrize(
    ("names", "known", "unknown"),
    [
        ("", [socket.gethostname(), socket.gethostname().upper() + ".", "10.1.2.3", "localhost"], ["evil.example"]),
        (", names: [nfs.example]", ["nfs.example:1", socket.gethostname()], ["evil.nfs.example", "evil.example"]),
        (", names: ['*']", ["whatever.example"], []),
    ],
)
def test_who_asks_an_address_of_the_network_by_a_strange_name_learns_nothing(
    tmp_path: Path, names: str, known: list[str], unknown: list[str]
) -> None:
    rig = Rig(tmp_path)
    rig.extra += f"  metrics: {{listen: '0.0.0.0:0'{names}}}\n"

    async def test() -> None:
        for host in known:
            assert (await get(rig, "/stats.json", host=host))[0] == 200, host
        for host in unknown:
            for path in ("/stats.json", "/metrics", "/"):
                assert (await get(rig, path, host=host))[0] == 403, host

    run(rig, test)


def test_a_port_alone_is_one_of_the_loopback_address(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    file = tmp_path / "exports.yaml"
    file.write_text(
        "server:\n  listen: [tcp://127.0.0.1:0]\n  metrics: {listen: 9587}\nexports:\n  - {path: export, pseudo: /x}\n"
    )
    assert load(str(file)).server.metrics.listen == "127.0.0.1:9587"


def test_the_dashboard_shows_metrics_that_there_are_with_labels_they_have(rig: Rig) -> None:
    whole = DASHBOARD.read_text()
    board = json.loads(whole)
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]

    async def test() -> None:
        for transport, version in WAYS:
            rig.transport = transport
            options = replace(rig.options, nfs_version=version, mount_port=rig.ports["mountd"])  # type: ignore[arg-type]
            async with connect(rig.url(), options) as files:
                await files.write_bytes("file", bytes(200_000))
                await files.read_bytes("file")
                assert not await files.exists("nothing")
        text = (await get(rig, "/metrics"))[2].decode()
        known: dict[str, set[str]] = {}
        values: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                known.setdefault(sample.name, set()).update(sample.labels)
                for label, value in sample.labels.items():
                    values.setdefault(f"{sample.name} {label}", set()).add(value)
        families = {family.name for family in text_string_to_metric_families(text)}
        # No sample yet of what did not happen: a connection refused, a callback; nor without Kerberos and TLS.
        empty = {
            "rdma_nfsd_connection_events_total": {"event"}, "rdma_nfsd_callbacks_total": {"operation", "result"},
            "rdma_nfsd_gss_events_total": {"event"}, "rdma_nfsd_tls_expiry_timestamp_seconds": {"file"},
        }  # fmt: skip
        for expression in expressions:
            names = re.findall(r"\b((?:rdma_nfsd|process)_[a-z0-9_]+)(\{[^}]*\})", expression)
            assert names, expression
            for name, selector in names:
                if name in empty and name.removesuffix("_total") in families:
                    known.setdefault(name, empty[name])
                assert name in known, f"{name} in {expression}"
                for label, value in re.findall(r'([a-z]+)=~?"([^"]*)"', selector):
                    if label not in ("instance", "job"):
                        assert label in known[name], f"{label} of {name}"
                        assert set(value.split("|")) <= values[f"{name} {label}"], value
                for group in re.findall(r"by \(([^)]*)\)", expression):
                    labels = {label.strip() for label in group.split(",")}
                    assert labels <= known[name], f"{labels} of {name}"
        assert (await get(rig, "/grafana.json"))[2] == whole.encode()

    run(rig, test)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for number, one in enumerate(places):
        for other in places[:number]:
            apart = (
                one[2] >= other[2] + other[1] or other[2] >= one[2] + one[1] or one[3] >= other[3] + other[0]
                or other[3] >= one[3] + one[0]
            )  # fmt: skip
            assert apart, "panels lie on each other"
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z_]+)", whole)) - {"__rate_interval"}
    assert used <= variables | {"__rate_interval"} | {"__rate"}, used


@needs_browser
@pytest.mark.timeout(300)
def test_a_browser_shows_who_does_what_under_load(rig: Rig) -> None:
    def look(url: str) -> tuple[str, bytes]:
        with browser() as page:
            page.open(url)
            for table, words in (
                ("exports", r"/\/export\s+[\d.]+k?\s+\S+\s+[\d.]+[KM]\s/"),
                ("clients", r"/127\.0\.0\.1\s+[1-9]/"),
                ("operations", r"/v3 WRITE/"),
                ("operations", r"/v4 READ/"),
                ("rdma", r"/RDMA Writes\s+[1-9][\d.]*k?\/s/"),
                ("memory", r"/buffers, in use\s+\S/"),
                ("held", r"/sessions\s+[1-9]/"),
            ):
                page.until(f"{words}.test(document.getElementById('{table}')?.innerText)")
            page.until("document.getElementById('notes').children.length > 0")
            for chart in ("calls", "read", "written", "cpu"):
                page.until(f"document.querySelectorAll('#{chart}-chart path').length === 2")
            page.until("document.getElementById('read-now').textContent !== '0'")
            assert page.evaluate("document.getElementById('state').className") == ""
            assert page.evaluate("performance.getEntriesByType('resource').every(one => one.name.startsWith(origin))")
            return page.text(), page.picture()

    async def test() -> None:
        async with work(rig):
            text, picture = await asyncio.to_thread(look, f"http://127.0.0.1:{rig.daemon.metrics_port}/")
        assert "Slow, and why" in text
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 20_000

    run(rig, test)


@needs_browser
@pytest.mark.timeout(300)
def test_a_browser_says_when_the_server_is_gone_and_goes_on_when_it_is_back(rig: Rig) -> None:
    async def test() -> None:
        with browser() as page:
            port = rig.daemon.metrics_port
            rig.extra = rig.extra.replace("127.0.0.1:0", f"127.0.0.1:{port}")
            await asyncio.to_thread(page.open, f"http://127.0.0.1:{port}/")
            await asyncio.to_thread(page.until, "document.getElementById('exports').innerText.includes('/export')")
            await rig.daemon.stop()
            await asyncio.to_thread(page.until, "document.getElementById('state').className === 'lost'")
            await rig.start()
            await asyncio.to_thread(page.until, "document.getElementById('state').className === ''")

    run(rig, test)


@needs_browser
@pytest.mark.timeout(300)
def test_texts_of_the_servers_are_no_markup_to_a_browser(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "</td><img src=x onerror=\"document.title='owned'\"><b>x"

    def look(url: str) -> tuple[str, int, str]:
        with browser() as page:
            page.open(url)
            page.until("document.getElementById('inflight').innerText.includes('onerror')")
            return page.text(), page.evaluate("document.images.length"), page.evaluate("document.title")

    async def test() -> None:
        snapshot = rig.daemon._statistics.snapshot

        def poisoned() -> dict[str, Any]:
            amount = {"calls": 1, "errors": 0, "read": 0, "written": 0, "seconds": 0.0}
            waiting = {"call": evil, "client": evil, "over": evil, "export": evil, "seconds": 1.0, "why": evil}
            users = {"exports": {evil: amount}, "clients": {evil: amount}}
            return snapshot() | users | {"inflight": [waiting], "notes": [evil]}

        monkeypatch.setattr(rig.daemon.web, "_statistics", poisoned)
        text, images, title = await asyncio.to_thread(look, f"http://127.0.0.1:{rig.daemon.metrics_port}/")
        assert (images, title) == (0, "rdma-nfsd")
        assert text.count(evil) == 8

    run(rig, test)
