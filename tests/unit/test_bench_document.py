"""What ``python -m bench --document`` writes: tables and charts, of memory, of each file system, and of the guest."""

import json
import re
import shutil
from xml.etree import ElementTree

import pytest

from bench import charts, document
from bench.__main__ import STUDIES, main
from tests.vm import compare

FACTS = {
    "cores": 2, "cpu": "a processor", "kernel": "6.1", "python": "3.11.2", "load": 0.1, "when": "2026-01-02",
    "commit": "0123abc", "rounds": 3, "seconds": 2.0,
}  # fmt: skip
LIMITS = {
    "round_trip_us": 4.0,
    "pread_us": 1.0,
    "pwrite_us": 1.0,
    "round_trips_per_s": 1e5,
    "loopback_octets_per_s": 1e9,
    "memcpy_octets_per_s": 1e10,
}


def measured(cpu, **rates):
    """A server's figures, made up: by scenario and transport, CPU and calls per second."""
    times = {"user_us": 1.0, "p50_us": 5, "p99_us": 9, "p999_us": 10}
    figures = {"getattr tcp": {"cpu_us": cpu, "calls_per_s": 100.0, **times}}
    for name, value in rates.items():
        figures[name.replace("_", " ")] = {
            "cpu_us": 2 * cpu,
            "calls_per_s": value,
            "work_requests": 2.0,
            "rdma_octets": 0.0,
            **times,
        }
    return {"scenarios": figures, "failures": {}, "peak_memory": 1 << 20}


def run():
    """What ``--server rdma-nfsd ganesha --on ext4 xfs`` finds, made up."""
    return {
        "machine": FACTS,
        "limits": LIMITS,
        "servers": {"rdma-nfsd": measured(2.0, getattr_rdma=50.0), "ganesha": measured(8.0)},
        "disks": {
            "ext4": {"rdma-nfsd": measured(3.0, untar_tcp=7.0), "ganesha": measured(12.0, untar_tcp=14.0)},
            "xfs": {"rdma-nfsd": measured(5.0), "ganesha": measured(10.0)},
        },
        "places": {"tmpfs": {"told": "tmpfs in memory"}, "ext4": {"told": "ext4"}, "xfs": {"told": "xfs"}},
        "studies": {},
    }


def test_the_summary_has_a_row_for_each_file_system_with_the_mean_of_the_ratios():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in charts.summary(run())[2:]]
    assert rows == [
        ["tmpfs", "ganesha", "1", "0.25", "0.25", "0.25", "1.00"],
        ["ext4", "ganesha", "2", "0.25", "0.25", "0.25", "0.71"],
        ["xfs", "ganesha", "1", "0.50", "0.50", "0.50", "1.00"],
    ]
    assert charts.summary(run() | {"servers": {"rdma-nfsd": measured(2.0)}, "disks": {}}) == []


def test_what_a_picture_shows_is_what_was_measured():
    assert list(charts.in_place(run(), "tmpfs")) == ["rdma-nfsd, TCP", "rdma-nfsd, RDMA", "ganesha, TCP"]
    shown = charts.in_place(run(), "ext4")
    assert {name: list(rows) for name, rows in shown.items()} == {
        name: ["getattr", "untar, per file"] for name in ("rdma-nfsd, TCP", "ganesha, TCP")
    }
    assert shown["ganesha, TCP"]["untar, per file"]["calls_per_s"] == 14.0


@pytest.fixture
def pages(tmp_path):
    """Copies of the pages, to be written to."""
    for page in (document.DOCUMENT, document.STUDIES):
        shutil.copy(page, tmp_path)
    return tmp_path / document.DOCUMENT.name


def test_a_run_of_every_file_system_becomes_a_page_with_a_chart_of_each(pages, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(document, "DOCUMENT", pages)
    (tmp_path / "run.json").write_text(json.dumps(run()))
    assert main(["--from", str(tmp_path / "run.json"), "--document"]) == 0
    text = pages.read_text()
    for name in ("memory", "ext4", "xfs"):
        assert f"](charts/{name}.svg)" in text
        picture = ElementTree.parse(tmp_path / "charts" / f"{name}.svg").getroot()
        words = {"".join(each.itertext()).strip() for each in picture.iter("{http://www.w3.org/2000/svg}text")}
        assert {"getattr", "rdma-nfsd, TCP", "ganesha, TCP"} <= words
        assert ("untar, per file" in words) == (name == "ext4")
    assert "| ext4 | ganesha | 2 | 0.25 |" in text
    assert "2 cores of a processor, Linux 6.1, Python 3.11.2" in text
    before = text
    document.write(run(), STUDIES, pages)
    assert pages.read_text() == before


def test_what_was_not_measured_stays_as_it_is(pages):
    pytest.importorskip("matplotlib")
    before = pages.read_text()
    none = {"rdma-nfsd": {"scenarios": {}}}
    document.write(run() | {"servers": none, "disks": {"ext4": none}}, STUDIES, pages)
    assert pages.read_text() == before
    document.write(run() | {"disks": {}}, STUDIES, pages)
    after = pages.read_text()

    def part(text, name):
        return re.search(f"begin {name} -->(.*)<!-- end {name} ", text, re.DOTALL)[1]

    assert part(after, "places") == part(before, "places")
    assert part(after, "scenarios") != part(before, "scenarios")


def in_guest():
    """What the guest's part of a run finds, made up."""
    servers = {"rdma-nfsd-verbs": measured(100.0, getattr_rdma=4.0), "kernel": measured(200.0, getattr_rdma=8.0)}
    for found in servers.values():
        del found["peak_memory"]  # nobody knows it there
    return {"kernel": "6.1", "accelerator": "tcg", "processors": 2, "servers": servers}


def test_the_kernels_server_has_its_row_and_its_chart(pages, tmp_path):
    pytest.importorskip("matplotlib")
    document.write(run() | {"guest": in_guest()}, STUDIES, pages)
    text = pages.read_text()
    assert "| in a guest, TCP and siw | knfsd | 2 | 0.50 | 0.50 | 0.50 | 0.71 |" in text
    assert "](charts/guest.svg)" in text
    picture = (tmp_path / "charts" / "guest.svg").read_text()
    assert all(f">{word}</text>" in picture for word in ("getattr rdma", "kernel", "rdma-nfsd-verbs"))


def test_the_comparison_to_a_linux_client_has_a_chart_of_medians(pages, tmp_path):
    pytest.importorskip("matplotlib")
    samples = [
        compare.Sample(server, "siw", "4.2", "1M read", turn, 50.0, iops, 9.0, 20.0, cpu)
        for server, cpu in (("rdma-nfsd", 30.0), ("knfsd", 20.0))
        for turn, iops in enumerate((10.0, 30.0, 20.0))
    ]
    name = "siw, NFSv4.2, 1M read"
    assert compare.series(samples)["knfsd"] == {name: {"cpu_us": 20.0, "calls_per_s": 20.0}}
    compare.write_document(compare.table(samples), "A note.", samples, pages)
    assert "](charts/client.svg)" in pages.read_text()
    assert f">{name}</text>" in (tmp_path / "charts" / "client.svg").read_text()
