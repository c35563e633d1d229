"""Fixtures of the guest tests: the network, and what a module of tests shares."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.vm.build import chosen_kernel
from tests.vm.kernel_server import KernelServer
from tests.vm.network import Network, namespace_or_slirp
from tests.vm.server import Server

AGAINST_KERNEL = os.environ.get("RDMA_NFSD_TEST_SERVER") == "kernel"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here that boots a guest carries the marker ``guest``, and minutes instead of seconds; where the server
    runs in the guest, on RDMA devices, ``devices`` too."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not item.get_closest_marker("unit"):
            item.add_marker(pytest.mark.guest)
            if item.path.name.startswith("test_verbs_"):
                item.add_marker(pytest.mark.devices)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1800))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure names the kernel: ``make test`` runs some tests with two."""
    report = yield
    if report.failed:
        report.sections.append(("the guest's kernel", f"GUEST={chosen_kernel()}"))
    return report


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """A network with nobody on it yet."""
    with namespace_or_slirp() as made:
        yield made


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory on the host's disk, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="rnfsd-test-", dir=os.environ.get("RDMA_NFSD_TEST_DIR", "/var/tmp")))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def server(network: Network, directory: Path) -> Iterator[Server | KernelServer]:
    """The server under test, running; or the kernel's (see tests.vm.kernel_server)."""
    if AGAINST_KERNEL:
        with KernelServer(network) as kernel:
            yield kernel
    else:
        with Server(directory / "server", network) as made:
            yield made
