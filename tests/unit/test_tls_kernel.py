"""TLS by the kernel: what is sent leaves as in the clear, and the kernel makes records of it. Threads play one.
Where the real one has TLS, the same is seen of it, too (tests/vm/test_tls_in_kernel.py)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from nfsd import tls
from rpcrdma.crew import Crew
from rpcrdma.memory import Pool
from rpcrdma.rpc.program import RpcReply
from rpcrdma.tcp.stream import RecordStream
from rpcrdma.tls.kernel import Kernel, KeysStay, crypto_info, find_kernel
from rpcrdma.tls.records import directions
from rpcrdma.tls.secrets import SUITES, Secret, Secrets
from tests.hostile.attacks.tls import Secured as Client
from tests.hostile.attacks.tls import context
from tests.hostile.peer import Tcp
from tests.support.tls import ALERT, DATA, HANDSHAKE, KEY_UPDATE
from tests.support.tls_kernel import StandIn
from tests.unit.tcp_support import until
from tests.unit.test_tls import Secured
from tests.unit.test_tls_records import LAST, SIZES, Ends, message, tcp_pair
from tests.unit.test_usage_metrics import METRICS, scrape

MIB = 1 << 20
Enciphers = StandIn | Kernel


@pytest.fixture(params=["threads", "this one"])
def kernel(request: pytest.FixtureRequest) -> Enciphers:
    """One that enciphers."""
    if request.param == "threads":
        return StandIn()
    try:
        return find_kernel()
    except OSError as error:
        pytest.skip(f"this kernel: {error.strerror}")


def receive(ends: Ends) -> None:
    """Take what the peer sends, as soon as it is there. Raises ConnectionError."""
    assert select.select([ends.own], [], [], 60)[0]
    ends.receive()


def test_records_of_every_size_leave(kernel: Enciphers) -> None:
    ends = Ends(kernel=kernel)
    for size in SIZES:
        ends.send(message(size))
        ends.stream.queue(RpcReply(1, message(size), []))
        assert ends.take(4 + size)[4:] == message(size)
    while len(ends.came) < len(SIZES):
        receive(ends)
    assert ends.came == [message(size) for size in SIZES]
    assert ends.pool.in_use == 0, "nothing is copied into memory of its own"
    ends.close()


def test_what_is_long_is_sent_by_threads(kernel: Enciphers) -> None:
    crew = Crew(2)
    all_ends = [Ends(crew=crew, kernel=kernel) for _ in range(3)]
    for ends in all_ends:
        for size in SIZES:
            ends.stream.queue(RpcReply(1, message(size), []))
        ends.stream.flush()
        assert ends.stream.busy
    for ends in all_ends[:2]:
        expected = b"".join((LAST | size).to_bytes(4, "big") + message(size) for size in SIZES)
        assert ends.take(len(expected)) == expected
        assert ends.woken
    for ends in all_ends:
        ends.close()  # one of them while a thread may be sending
    crew.take()
    crew.close()


def peer_reads(ends: Ends) -> bytes:
    """What the peer makes of all that has come, up to the end."""
    ends.own.close()
    while octets := ends.sock.recv(1 << 16):
        ends._to_tls.write(octets)
    return ends.tls.read(1)


def test_the_end_is_told(kernel: Enciphers) -> None:
    ends = Ends(kernel=kernel)
    ends.raw(ALERT, b"\1\0")
    receive(ends)
    assert ends.stream.eof
    ends.stream.close()
    assert peer_reads(ends) == b""
    ends.close()


def test_what_breaks_the_rules_is_answered_with_an_alert(kernel: Enciphers) -> None:
    ends = Ends(kernel=kernel)
    ends.sock.sendall(b"\x17\3\3\x41\1")
    with pytest.raises(ConnectionError):
        receive(ends)
    ends.stream.close()
    with pytest.raises(ssl.SSLError, match="RECORD_OVERFLOW"):
        peer_reads(ends)
    ends.close()


def test_keys_change_when_the_peer_says_so(kernel: Enciphers) -> None:
    """Or, with a kernel that cannot change them, the connection ends when the peer asks for that."""
    ends = Ends(kernel=kernel)
    for asks in (0, 1, 1) if kernel.rekeys else (0, 0):
        ends.raw(HANDSHAKE, KEY_UPDATE + bytes([asks]))
        ends.forged().update()
        ends.raw(DATA, (LAST | 4).to_bytes(4, "big") + b"more")
        while not ends.came:
            receive(ends)
        assert ends.came.pop() == b"more"
        ends.stream.queue(RpcReply(1, b"there", []))
        assert ends.take(9)[4:] == b"there"  # the library follows
    ends.close()


def test_keys_that_stay_end_the_connection(kernel: Enciphers) -> None:
    if isinstance(kernel, StandIn):
        kernel = StandIn(rekeys=False)
    if kernel.rekeys:
        pytest.skip("this kernel changes keys")
    ends = Ends(kernel=kernel)
    ends.raw(HANDSHAKE, KEY_UPDATE + b"\1")
    with pytest.raises(KeysStay):
        receive(ends)
    ends.stream.close()
    with pytest.raises(ssl.SSLError, match="INTERNAL_ERROR"):
        peer_reads(ends)
    ends.close()


@pytest.mark.parametrize("cipher", SUITES)
def test_every_suite_that_the_kernel_has(cipher: str) -> None:
    """It makes the records that a native end deciphers."""
    try:
        kernel = find_kernel()
    except OSError as error:
        pytest.skip(f"this kernel: {error.strerror}")
    digest = 48 if "384" in cipher else 32
    one, other = Secret(cipher, b"1" * digest), Secret(cipher, b"2" * digest)
    a, b = tcp_pair()
    link = kernel.take(a, one)
    assert link is not None
    a.sendall((LAST | 50000).to_bytes(4, "big") + message(50000))
    b.setblocking(False)
    pool = Pool(64 << 20)
    stream = RecordStream(b.fileno(), pool.account(64 << 20))
    stream.secure(directions(Secrets(one, other, False)))
    found: list[bytes] = []
    while not found:
        for record, hold in stream.receive():
            found.append(bytes(record))
            record.release()
            hold.release()
    assert found == [message(50000)]
    stream.close()
    a.close()
    b.close()


@pytest.mark.parametrize("cipher", SUITES)
def test_the_kernel_is_told_as_its_header_has_it(cipher: str) -> None:
    """<linux/tls.h>: version, cipher, IV, key, salt and the first record's number. RFC 8446 section 5.3's write_iv is
    salt and IV."""
    secret = Secret(cipher, bytes(range(48 if "384" in cipher else 32)))
    key, iv = secret.keys()
    sizes = {"TLS_AES_128_GCM_SHA256": (51, 8, 16, 4), "TLS_AES_256_GCM_SHA384": (52, 8, 32, 4)}
    number, of_iv, of_key, of_salt = sizes.get(cipher, (54, 12, 32, 0))
    told = crypto_info(secret)
    assert len(told) == 4 + of_iv + of_key + of_salt + 8
    assert int.from_bytes(told[:2], sys.byteorder) == 0x0304
    assert int.from_bytes(told[2:4], sys.byteorder) == number
    assert told[4 + of_iv :][:of_key] == key
    assert told[4 + of_iv + of_key :][:of_salt] + told[4:][:of_iv] == iv
    assert told[-8:] == bytes(8)


def test_what_a_kernel_does_not_take_is_left_as_it_is() -> None:
    a, b = socket.socketpair()
    assert Kernel(True).take(a, Secret("TLS_AES_128_GCM_SHA256", bytes(32))) is None
    a.sendall(b"as it is")
    assert b.recv(100) == b"as it is"
    a.close()
    b.close()


# -- the server ------------------------------------------------------------------------------------------------------
def counts(rig: Secured) -> Any:
    found = rig.daemon.listeners.tls
    assert found is not None
    return found


def octets_read() -> int:
    """That this process has had copied by read(2) and its like. What goes by splice(2), or comes by recv(2), is not
    counted."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("version", ["3", "4.1"])
def test_files_are_written_and_read(
    tmp_path: Path, kernel: Enciphers, version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is read leaves from the page cache without a copy."""
    monkeypatch.setattr(tls, "find_kernel", lambda: kernel)
    rig = Secured(tmp_path, version, ", xprtsec: [tls]")
    rig.extra += METRICS
    data = os.urandom(8 * MIB)

    async def test() -> None:
        async with rig.connect() as files:
            await files.write_bytes("file", data)
            before = octets_read()
            assert await files.read_bytes("file") == data
            assert octets_read() - before < MIB
            assert "tls" in rig.securities()
            found = (await scrape(rig.daemon))["rdma_nfsd_tls_kernel_connections"][()]
            assert found == counts(rig).in_kernel == len(rig.securities())
        await until(lambda: counts(rig).in_kernel == 0)

    with caplog.at_level(logging.INFO):
        rig.run(test)
    assert "TLS: the kernel enciphers what is sent" in caplog.text
    assert (rig.export / "file").read_bytes() == data


def test_without_a_kernel_that_enciphers_it_is_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So it is where it has not this connection's cipher, or must not."""

    def none() -> Kernel:
        raise OSError(errno.ENOENT, "no module tls")

    class Unwilling(StandIn):
        def take(self, sock: socket.socket, secret: Secret) -> None:  # type: ignore[override]
            return None

    def must_not() -> Kernel:
        raise AssertionError

    data = os.urandom(3 * MIB)
    finders: list[tuple[Any, str, str]] = [
        (none, "", "what is sent is enciphered in user space: no module tls"),
        (Unwilling, "", "the kernel enciphers what is sent"),
        (must_not, ", kernel: never", "what is sent is enciphered in user space: server.tls.kernel is never"),
    ]
    for number, (finder, more, said) in enumerate(finders):
        monkeypatch.setattr(tls, "find_kernel", finder)
        (base := tmp_path / str(number)).mkdir()
        rig = Secured(base)
        rig.extra = rig.extra.replace("server.key", f"server.key{more}")

        async def test(rig: Secured = rig) -> None:
            async with rig.connect() as files:
                await files.write_bytes("file", data)
                before = octets_read()
                assert await files.read_bytes("file") == data
                assert octets_read() - before >= len(data), "how copies are seen"
                assert counts(rig).in_kernel == 0

        caplog.clear()
        with caplog.at_level(logging.INFO):
            rig.run(test)
        assert f"TLS: {said}" in caplog.text


def test_the_log_says_why_keys_that_stay_end_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls, "find_kernel", lambda: StandIn(rekeys=False))
    rig = Secured(tmp_path)

    def ask() -> None:
        """Ask for new keys, and read until the end."""
        made, log = context()
        with Tcp(("127.0.0.1", rig.ports["tcp"]), "127.0.0.1") as way:
            client = Client(way, made, log)
            way.send(client.forged.seal(HANDSHAKE, KEY_UPDATE + b"\1"))
            while way.socket.recv(4096):
                pass
        log.close()

    async def test() -> None:
        await asyncio.to_thread(ask)

    rig.run(test)
    assert "the peer wants new keys, and this kernel cannot change them" in caplog.text
