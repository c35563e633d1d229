"""rdma-nfsd check: what is wrong with this host for a configuration, by line, key and remedy, before a start."""

import asyncio
import json
import os
import socket
import threading

import pytest
import trustme

from nfsd.cli import main
from nfsd.config_file import load
from nfsd.daemon import Daemon
from rpcrdma.rpc.rpcbind import Rpcbind
from tests.support.machine import open_the_way
from tests.support.ports import free_port
from tests.unit.test_any_directory import overlay
from tests.unit.test_vfs_mounts import mounted
from tests.unit.test_vfs_unprivileged import in_child


@pytest.fixture
def check(tmp_path, capsys):
    """Writes a file and checks it: the exit status, and the lines of stderr or what is in the JSON."""
    (tmp_path / "export").mkdir()

    def run(server="listen: [tcp://127.0.0.1:0]", *exports, options=()):
        lines = [f"  - {{{export}}}" for export in exports or ("path: export",)]
        file = tmp_path / "exports.yaml"
        file.write_text("\n".join(["server:", *(f"  {line}" for line in server.split("\n")), "exports:", *lines, ""]))
        before = sorted(os.listdir(tmp_path))
        status = main(["check", "--config", str(file), *options])
        assert sorted(os.listdir(tmp_path)) == before, "nothing is changed"
        out, err = capsys.readouterr()
        if "--json" in options:
            return status, json.loads(out)
        return status, [line.removeprefix(f"{file}:") for line in err.splitlines()] or out

    return run


def test_an_address_that_is_not_ours(check):
    status, said = check("listen: [tcp://192.0.2.1:2049]\nmountd_port: 0")
    assert status == 1
    assert said == [
        "2: server.listen[0]: cannot listen on tcp port 2049 of 192.0.2.1: cannot assign requested address; 192.0.2.1 "
        "is not an address of this host: write one that is (ip address), or 0.0.0.0 or [::] for all"
    ]


def test_a_port_that_is_taken(check):
    nsm = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        port = taken.getsockname()[1]
        datagrams.bind(("127.0.0.1", nsm))
        status, said = check(
            f"listen: [tcp://127.0.0.1:0]\nmetrics: {{listen: {port}}}\nmountd_port: {port}\nnsm_port: {nsm}"
        )
        assert status == 1
        assert said[0].startswith(f"3: server.metrics.listen: cannot listen on tcp port {port} of 127.0.0.1: address")
        assert f"ss -lntup 'sport = :{port}'" in said[0]
        assert said[1].startswith(
            f"4: server.mountd_port: tcp port {port} of 127.0.0.1 is that of server.metrics.listen"
        )
        assert said[2].startswith(f"5: server.nsm_port: cannot listen on udp port {nsm}")
        status, _ = check(f"listen: [rdma://127.0.0.1:{port}]\nmountd_port: 0")
        assert status == 1, "the embedded provider is TCP"


def test_a_port_that_is_used_twice(check):
    status, said = check("listen: ['tcp://0.0.0.0:14049', 'rdma://127.0.0.1:14049']\nmountd_port: 14049")
    assert status == 1
    assert said == [
        "2: server.listen[1]: tcp port 14049 of 127.0.0.1 is that of server.listen[0] already, in line 2; choose "
        "another port",
        "3: server.mountd_port: tcp port 14049 of 0.0.0.0 is that of server.listen[0] already, in line 2; choose "
        "another port",
    ]
    assert check("listen: ['tcp://127.0.0.1:14049', 'tcp://127.0.0.2:14049']\nmountd_port: 0")[0] == 0


@pytest.mark.parametrize("place", ["state", "state/below"])
def test_a_state_directory_that_cannot_be_written(check, tmp_path, place):
    (tmp_path / "state").mkdir()
    with mounted(str(tmp_path / "state"), "-t", "tmpfs", "-o", "ro,mode=700", "none"):
        status, said = check(f"listen: [tcp://127.0.0.1:0]\nstate_dir: {place}\nmountd_port: 0")
    assert status == 1
    assert said == [
        f"3: server.state_dir: {tmp_path}/state may not be written by uid 0; let the server's user write there, or "
        "name another directory"
    ]


def test_a_state_directory_of_somebody_else(check, tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    os.chown(tmp_path / "state", 4321, 4321)
    status, said = check("listen: [tcp://127.0.0.1:0]\nmountd_port: 0")
    assert (status, len(said)) == (1, 1)
    assert "server.state_dir" in said[0]
    assert "belongs to uid 4321" in said[0]


def test_directories_that_are_not_there(check, tmp_path):
    (tmp_path / "plain").write_text("")
    exports = ("path: export", "path: gone", "path: plain", "path: export/../export2, mountpoint: true")
    (tmp_path / "export2").mkdir()
    status, said = check("listen: [tcp://127.0.0.1:0]\nmountd_port: 0", *exports)
    assert status == 1
    assert said == [
        f"6: exports[1].path: {tmp_path}/gone does not exist; create it (mkdir -p) or correct the path",
        f"7: exports[2].path: {tmp_path}/plain is not a directory; only directories can be exported",
        f"8: exports[3].path: nothing is mounted at {tmp_path}/export2; mount it, or leave out mountpoint",
    ]
    assert check("listen: [tcp://127.0.0.1:0]\nmountd_port: 0", *exports, options=["--file-only"])[0] == 0


def test_what_may_not_be_entered(check, tmp_path):
    open_the_way(tmp_path)
    (tmp_path / "export" / "closed").mkdir()
    (tmp_path / "export").chmod(0o700)
    (tmp_path / "mine").mkdir(mode=0o700)
    os.chown(tmp_path / "mine", 1001, 1001)

    def as_user():
        status, said = check(
            "listen: ['tcp://127.0.0.1:81']\nstate_dir: mine/state\nmountd_port: 0", "path: export/closed"
        )
        assert status == 1
        assert "exports[0].path" in said[-1]
        assert "permission denied; let the server's user in" in said[-1]

    def become():
        os.setgroups([])
        os.setresgid(1001, 1001, 1001)
        os.setresuid(1001, 1001, 1001)

    (tmp_path / "exports.yaml").touch()
    os.chown(tmp_path / "exports.yaml", 1001, 1001)
    in_child(become, as_user)


def test_what_stands_in_for_file_handles_is_a_warning(check, tmp_path):
    (tmp_path / "lower").mkdir()
    with overlay(tmp_path, tmp_path / "export"):
        status, out = check("listen: [tcp://127.0.0.1:0]\nmountd_port: 0")
        assert status == 0
        assert "good" in out
        assert f"warning: {tmp_path}/exports.yaml:5: exports[0].path: the file system of" in out
        assert "of several hard links" in out
        status, found = check("listen: [tcp://127.0.0.1:0]\nmountd_port: 0", options=["--json"])
    assert (status, found["good"], found["findings"][0]["severity"]) == (0, True, "warning")


def test_json(check, tmp_path):
    status, found = check("listen: [tcp://127.0.0.1:0]\nmountd_port: 0", "path: gone", options=["--json"])
    assert status == 1
    assert found == {
        "file": f"{tmp_path}/exports.yaml",
        "good": False,
        "findings": [
            {
                "file": f"{tmp_path}/exports.yaml",
                "line": 5,
                "key": "exports[0].path",
                "severity": "error",
                "message": f"{tmp_path}/gone does not exist",
                "remedy": "create it (mkdir -p) or correct the path",
            }
        ],
    }
    status, found = check("listen: [tcp://127.0.0.1:0]\nnonsense: 0", options=["--json"])
    assert (status, found["good"]) == (2, False)
    (one,) = found["findings"]
    assert (one["line"], one["key"], one["message"]) == (3, "server.nonsense", "unknown key")


KINDS = {"pipe": "a pipe", "socket": "a socket", "device": "a device", "directory": "a directory"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["keytab", "certificate", "key", "client_roots", "revoked"])
def test_what_is_no_file_is_not_waited_for(check, tmp_path, kind, key):
    special = make_special(tmp_path, kind)
    if key == "keytab":
        what, key = "keytab", "kerberos.keytab"
        server = f"kerberos: {{keytab: {special}}}"
    else:
        certified = trustme.CA().issue_cert("127.0.0.1")
        (tmp_path / "pem").write_bytes(certified.private_key_and_cert_chain_pem.bytes())
        files = dict.fromkeys(("certificate", "key", "client_roots", "revoked"), tmp_path / "pem")
        what, key, server = "PEM file", "tls", f"tls: {json.dumps({**files, key: special}, default=str)}"
    status, said = check(f"listen: [tcp://127.0.0.1:0]\n{server}\nmountd_port: 0")
    assert (status, said) == (
        1, [f"3: server.{key}: {special}: is not a file but {KINDS[kind]}; name a {what}"],
    )  # fmt: skip


def make_special(directory, kind):
    """What is no regular file, whose opening may wait or have no end."""
    path = directory / "special"
    if kind == "device":
        return "/dev/zero"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    return path


def test_the_server_that_runs_is_no_hindrance(check, tmp_path):
    """As before a reload."""
    port = free_port()
    server = f"listen: ['tcp://127.0.0.1:{port}']\nmountd_port: 0"
    assert check(server)[0] == 0
    (tmp_path / "state").mkdir(mode=0o700)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def on_loop(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def start():
        daemon = Daemon(load(str(tmp_path / "exports.yaml")), Rpcbind((), None))
        await daemon.start()
        return daemon

    daemon = on_loop(start())
    try:
        assert check(server)[0] == 0
    finally:
        on_loop(daemon.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_the_server_says_the_same_at_its_start(check, tmp_path, caplog):
    _, said = check("listen: [tcp://192.0.2.1:2049, tcp://127.0.0.1:0]\nmountd_port: 0", "path: gone", "path: export")

    async def start():
        daemon = Daemon(load(str(tmp_path / "exports.yaml")), Rpcbind((), None))
        await daemon.start()
        await daemon.stop()

    asyncio.run(start())
    for line in said:
        remedy = line.rpartition("; ")[2]
        assert remedy in caplog.text
