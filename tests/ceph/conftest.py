"""The cluster that the tests of one process have in common. Where none can be had they are left out."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nfsd.backend_suite.trying import Entry
from nfsd.stable import rados as in_rados
from tests.ceph.cluster import Cluster
from tests.ceph.installed import why_not
from tests.ceph.stable_storage import Rados

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    missing = why_not()
    if missing:
        pytest.skip(f"CephFS: {missing}")
    directory = Path(tempfile.mkdtemp(prefix="ceph-"))
    made = Cluster(directory / "cluster")
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(directory, ignore_errors=True)


class Place:
    """A directory of the cluster's file system that one test has for itself."""

    def __init__(self, cluster: Cluster) -> None:
        from nfsd.backends.cephfs.mounting import Settings, mounted

        self.cluster = cluster
        name = f"test-{os.getpid()}-{next(_numbers)}"
        client = mounted(Settings(config=str(cluster.conf)))
        client.make(None, client.root()[0], os.fsencode(name), 0o41777, None, (0, 0))
        client.end()
        self.root = f"/{name}"
        self.options: dict[str, Any] = {"config": str(cluster.conf), "root": self.root}

    def entry(self, **more: Any) -> Entry:
        """The directory as an export."""
        return Entry({"backend": "cephfs", "options": self.options}, **more)

    @contextlib.contextmanager
    def client(self, **more: Any) -> Iterator[Any]:
        """Another client of the cluster, with the key of its root directory."""
        from nfsd.backends.cephfs.mounting import Settings, mounted

        client = mounted(Settings(**self.options, **more))
        try:
            yield client, client.root()[0]
        finally:
            client.end()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster on a busy machine, whose daemons have just been killed, takes its time to be mounted again."""
    monkeypatch.setattr("nfsd.vfs.stored_names.PATIENCE", 60)


@pytest.fixture
def place(cluster: Cluster) -> Place:
    return Place(cluster)


@pytest.fixture
def rados(cluster: Cluster, tmp_path: Path) -> Rados:
    """The records of a server that one test has for itself."""
    missing = in_rados.why_not()
    if missing:
        pytest.skip(f"RADOS: {missing}")
    (tmp_path / "state").mkdir()
    return Rados(cluster, tmp_path / "state")
