"""``rdma-nfsd takeover`` where the records are in a state directory, and what is wrong with its arguments. How records
in a pool are taken is in tests/ceph/test_takeover.py."""

import asyncio
import os
import re
import subprocess

import pytest

from nfsd import cli, state_dir
from nfsd.stable.rados import why_not
from nfsd.stable.sqlite import SqliteStorage
from tests.keepalived import document


@pytest.fixture
def place(tmp_path):
    """A configuration, and where its state directory will be."""
    (tmp_path / "data").mkdir()
    (tmp_path / "files1.yaml").write_text(_text(tmp_path, "name: files1"))
    return tmp_path


def _text(directory, *lines):
    server = ["listen: ['tcp://127.0.0.1:0']", f"state_dir: {directory}/state", *lines]
    exports = f"exports:\n  - {{path: {directory}/data, pseudo: /data}}\n"
    return "server:\n" + "".join(f"  {line}\n" for line in server) + exports


async def _served(directory):
    """A server has been there."""
    storage = SqliteStorage(str(directory))
    await storage.start()
    await storage.close()


def _takeover(place, *more, name="files1"):
    return cli.main(["takeover", name, "--config", str(place / "files1.yaml"), *more])


@pytest.mark.parametrize("is_there", [True, False])
def test_a_state_directory_without_records_is_refused(place, is_there, capsys):
    """Most likely its disk is not mounted; a server would be another one to clients there."""
    if is_there:
        (place / "state").mkdir(mode=0o700)
    assert _takeover(place) == 1
    assert "see that its disk is mounted" in capsys.readouterr().err
    assert (place / "state").exists() == is_there
    assert not is_there or not os.listdir(place / "state")


def test_a_state_directory_with_records_may_be_used(place, capsys):
    (place / "state").mkdir(mode=0o700)
    asyncio.run(_served(place / "state"))
    assert _takeover(place) == _takeover(place, "--fence") == 0
    assert "files1: may start here, with the records in" in capsys.readouterr().out
    lock = state_dir.take(str(place / "state"))
    assert _takeover(place) == 0
    assert "files1: runs on this host already" in capsys.readouterr().out
    os.close(lock)


def test_a_configuration_of_another_server_is_refused(place, capsys):
    assert _takeover(place, name="files2") == 2
    assert "server.name is files1, and not files2" in capsys.readouterr().err
    (place / "files1.yaml").write_text(_text(place))
    assert _takeover(place) == 2
    assert "server.name is not there, and not files1" in capsys.readouterr().err
    assert cli.main(["takeover", "no-such-server"]) == 2
    assert "/etc/rdma-nfsd/no-such-server.yaml" in capsys.readouterr().err


def test_a_pool_that_cannot_be_reached_is_told_of(place, capsys):
    pool = "stable_storage: {rados: {config: /nonexistent/ceph.conf, pool: none}}"
    (place / "files1.yaml").write_text(_text(place, "name: files1", pool))
    assert _takeover(place) == 1
    said = capsys.readouterr().err
    assert "rados:none/rdma-nfsd/server.files1" in said if why_not() else "/nonexistent/ceph.conf" in said


def test_the_unit_and_the_scripts_of_the_document_are_sound(tmp_path):
    unit = re.search(r"^sed '.*?' \\\n\s+\S+ > \S+$", document.file("unit"), re.DOTALL | re.MULTILINE)[0]
    unit = unit.replace("/lib/systemd/system/", f"{document.DOCUMENT.parents[1]}/systemd/").replace(
        "/etc/", f"{tmp_path}/"
    )
    (tmp_path / "systemd/system").mkdir(parents=True)
    subprocess.run(["sh", "-c", unit], check=True)
    lines = (tmp_path / "systemd/system/rdma-nfsd@.service").read_text().splitlines()
    assert "ExecStart=/usr/local/bin/rdma-nfsd serve --config /etc/rdma-nfsd/%i.yaml" in lines
    assert {"StateDirectory=rdma-nfsd/%i", "Restart=no"} <= set(lines)
    for script in (document.file("/etc/keepalived/rdma-nfsd"), document.disk_script()):
        subprocess.run(["sh", "-n"], input=script, check=True, text=True)
