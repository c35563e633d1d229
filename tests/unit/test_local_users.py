"""A server that acts as one user, as whoever started it: other users of its host do not get that user's rights."""

import asyncio
import encodings.idna  # noqa: F401 (users who may not read Python's files import nothing more)
import os
import socket
import traceback

import pytest
import uvloop

from nfsd.client import NfsClientError, Options, connect
from nfsd.config_file import load
from nfsd.daemon import Daemon
from nfsd.local_users import LocalUsers, owner
from rpcrdma.client import ClientOptions
from rpcrdma.rpc.rpcbind import Rpcbind
from tests.support.machine import needs_ipv6, open_the_way
from tests.unit.test_vfs_unprivileged import in_child

ME, OTHER = 1001, 1002


def become(uid):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def as_user(uid, check):
    in_child(lambda: become(uid) if uid else None, check)


@pytest.fixture
def serving(tmp_path):
    """Starts a server as an ordinary user, in a process of its own; gives the ports of TCP, RDMA and MOUNT."""
    open_the_way(tmp_path)
    export = tmp_path / "export"
    export.mkdir(mode=0o700)
    (export / "secret").write_text("mine")
    os.chown(export, ME, ME)
    os.chown(export / "secret", ME, ME)
    os.chown(tmp_path, ME, ME)
    children = []

    def start(local_users="own", host="127.0.0.1"):
        file = tmp_path / "exports.yaml"
        file.write_text(
            f"server:\n  listen: ['tcp://{host}:0', 'rdma://{host}:0']\n  mountd_port: 0\n"
            f"  local_users: {local_users}\n  nfs4: {{grace_time: 0, domain: example.org}}\n"
            "exports:\n  - {path: export, pseudo: /export, squash: none}\n"
        )

        async def serve(writing, ending):
            daemon = Daemon(load(str(file)), Rpcbind((), None))
            await daemon.start()
            ports = [started.address.port for name in ("nfs", "mountd") for started in daemon.listeners.of(name)]
            os.write(writing, " ".join(map(str, ports)).encode())
            await asyncio.to_thread(os.read, ending, 1)
            os.write(writing, f"{daemon.listeners.hosts.events['refused_user']}".encode())
            await daemon.stop()

        reading, writing = os.pipe()
        ending, end = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(end)
                become(ME)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(serve(writing, ending))
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        os.close(writing)
        os.close(ending)
        children.append((child, end, reading))
        ports = os.read(reading, 100).split()
        assert len(ports) == 3, "it has started"
        return [int(port) for port in ports]

    def stop():
        """How many connections were refused for their users."""
        child, end, reading = children.pop()
        os.close(end)
        refused = os.read(reading, 100)
        os.close(reading)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return int(refused)

    start.stop = stop
    yield start
    while children:
        stop()


def reading(ports, scheme, version, host="127.0.0.1"):
    """Reads the file."""
    at = f"[{host}]" if ":" in host else host

    async def read():
        url = f"{scheme}://{at}:{ports[scheme == 'rdma']}/export"
        patience = ClientOptions(reconnect=2, first_delay=0.02, longest_delay=0.2)
        options = Options(nfs_version=version, mount_port=ports[2], patience=5, rpc=patience)
        async with asyncio.timeout(60), connect(url, options) as fs:
            assert await fs.read_bytes("secret") == b"mine"

    return lambda: asyncio.run(read())


def refused(check):
    def turned():
        with pytest.raises((OSError, NfsClientError)):
            check()

    return turned


@pytest.mark.parametrize(("scheme", "version"), [("tcp", "3"), ("tcp", "4.1"), ("rdma", "3"), ("rdma", "4.1")])
def test_only_the_servers_user_and_root_may_connect(serving, scheme, version):
    ports = serving()
    check = reading(ports, scheme, version)
    check()  # as root, with everything imported that others may not
    as_user(ME, check)
    as_user(OTHER, refused(check))
    assert serving.stop() >= 1


def test_all_may_if_that_is_asked_for(serving):
    ports = serving("all")
    check = reading(ports, "tcp", "4.1")
    check()
    as_user(OTHER, check)
    assert serving.stop() == 0


@needs_ipv6
def test_over_every_address_of_this_host(serving):
    ports = serving(host="[::]")
    for host in ("::1", "127.0.0.1"):
        check = reading(ports, "tcp", "4.1", host)
        check()
        as_user(ME, check)
        as_user(OTHER, refused(check))


def test_a_server_that_can_be_anybody_takes_everybody(tmp_path):
    """Its files' permissions say who may do what."""
    (tmp_path / "export").mkdir()
    file = tmp_path / "exports.yaml"
    file.write_text(
        "server: {listen: [tcp://127.0.0.1:0], mountd_port: 0}\nexports:\n  - {path: export, pseudo: /export}\n"
    )

    async def main():
        daemon = Daemon(load(str(file)), Rpcbind((), None))
        await daemon.start()
        assert daemon.listeners.hosts.guard is None
        await daemon.stop()

    asyncio.run(main())


def test_whose_a_socket_is():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = listening.getsockname()
        with socket.create_connection(here) as near:
            there = near.getsockname()
            assert owner(there, here) == os.geteuid()
            assert owner(here, there) == os.geteuid()
            accepted, _ = listening.accept()
            assert LocalUsers(os.geteuid())(accepted) == ""
        accepted.close()
        assert owner(("127.0.0.1", 1), here) is None
        assert owner(here, ("127.0.0.1", 1)) is None, "what listens is not at the other end of anything"
        assert owner(("192.0.2.1", 77), here) is None


def test_who_cannot_be_told_is_refused_here_and_a_client_elsewhere(monkeypatch):
    class Accepted:
        def __init__(self, peer, here):
            self.peer, self.here = peer, here

        def getpeername(self):
            return self.peer, 700

        def getsockname(self):
            return self.here, 2049

    def silent(peer, here):
        raise OSError(93, "Protocol not supported")

    guard = LocalUsers(ME)
    monkeypatch.setattr("nfsd.local_users.owner", silent)
    assert "the kernel does not tell" in guard(Accepted("127.0.0.1", "127.0.0.1"))
    assert "the kernel does not tell" in guard(Accepted("192.0.2.1", "192.0.2.1"))
    assert guard(Accepted("192.0.2.2", "192.0.2.1")) == ""
    monkeypatch.setattr("nfsd.local_users.owner", lambda peer, here: None)
    assert "nobody knows" in guard(Accepted("127.0.0.1", "127.0.0.1"))
    assert guard(Accepted("192.0.2.2", "192.0.2.1")) == "", "a client elsewhere, as clients: has it"
    monkeypatch.setattr("nfsd.local_users.owner", lambda peer, here: OTHER)
    assert f"it is uid {OTHER}'s" in guard(Accepted("192.0.2.1", "192.0.2.9"))
