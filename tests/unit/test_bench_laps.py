"""Loads of chains of calls, of calls that are undone, and every scenario against a running server."""

import asyncio
import socket
import struct
import threading
from contextlib import ExitStack, contextmanager, suppress

import pytest

from bench import calls, fixtures
from bench.calls import Calls
from bench.generator import Generator, Loads
from bench.laps import Counted, Laps
from bench.scenarios import MORE, needed, part_of, prepare
from bench.servers import RdmaNfsd
from bench.study import cost

ACCEPTED = struct.pack(">6I", 1, 0, 0, 0, 0, 0)


@contextmanager
def replying(reply_to):
    """Our end of a connection whose other end answers each call of 60 octets."""

    def serve(theirs):
        data = b""
        with theirs, suppress(ConnectionError):
            while more := theirs.recv(65536):
                data += more
                while len(data) >= 64:
                    call, data = data[4:64], data[64:]
                    reply = reply_to(call)
                    theirs.sendall(struct.pack(">I", 1 << 31 | 4 + len(reply)) + call[:4] + reply)

    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs,))
    thread.start()
    with ours:
        yield ours
    thread.join()


def chains(number, length):
    """Calls whose octets 52 to 60 say which one it is of which chain."""
    return [bytes(52) + struct.pack(">II", one, step) for one in range(number) for step in range(length)]


def test_slots_share_chains_and_each_call_of_one_has_what_the_first_gave():
    seen = []
    given = {}

    def reply_to(call):
        one, step = struct.unpack(">II", call[52:])
        slot = struct.unpack(">I", call[:4])[0] & 0xFFF
        seen.append((one, step))
        if step == 0:
            given[one] = struct.pack(">5I", *range(len(seen), len(seen) + 5))
            return ACCEPTED + given[one]
        assert call[8:28] == given[one], f"slot {slot}, chain {one}, call {step}"
        return ACCEPTED

    with replying(reply_to) as sock:
        load = Generator(sock.fileno(), chains(7, 3), 2, chain=3, pairs=(28, 8), given=20)
        assert load.run(60, 21)[0] == 21
        assert sorted(seen) == [(one, step) for one in range(7) for step in range(3)], "each once"
        assert load.run(60, 21)[0] == 21, "and again"
    for one in range(7):
        assert [step for each, step in seen if each == one] == [0, 1, 2] * 2


@pytest.mark.parametrize("length", [1, 3])
def test_connections_share_calls_of_which_each_is_made_once(length):
    seen = []

    def reply_to(call):
        seen.append(struct.unpack(">II", call[52:]))
        return ACCEPTED

    made = Calls(chains(7, length), {"chain": length})
    with replying(reply_to) as one, replying(reply_to) as other:
        loads = Loads(
            Generator(sock.fileno(), part_of(made, number, 2), 1, chain=length, once=True)
            for number, sock in enumerate((one, other))
        )
        for lap in (1, 2):
            assert loads.run(60, 7 * length)[0] == 7 * length
            assert sorted(seen) == sorted([(chain, step) for chain in range(7) for step in range(length)] * lap)


def test_calls_of_a_slot_are_counted_where_their_place_is():
    seen = []

    def reply_to(call):
        slot = struct.unpack(">I", call[:4])[0] & 0xFFF
        step = struct.unpack(">I", call[56:])[0]
        seen.append((slot, struct.unpack_from(">I", call, (20, 24)[step])[0]))
        return ACCEPTED

    with replying(reply_to) as sock:
        Generator(sock.fileno(), chains(2, 2), 2, chain=2, counted_at=(20, 24), counted_from=3).run(60, 12)
        with pytest.raises(ValueError, match="2 places for 1 calls"):
            Generator(sock.fileno(), chains(2, 1), 2, counted_at=(20, 24))
        with pytest.raises(ValueError, match="5 calls are not a chain of 2 for each of 2 slots"):
            Generator(sock.fileno(), chains(5, 1), 2, chain=2)
    for slot in (0, 1):
        counts = [count for each, count in seen if each == slot]
        assert counts == list(range(4, 4 + len(counts)))
    assert len(seen) == 12


class Fixed:
    """Makes all the calls it is asked for; says what was done when."""

    def __init__(self, name, journal):
        self.name, self.journal = name, journal

    def run(self, seconds, most=0):
        self.journal.append((self.name, most))
        return most, 2.0

    def percentile(self, part):
        return part


def test_laps_are_measured_without_their_undoing():
    journal = []

    class On:
        def __enter__(self):
            journal.append("on")

        def __exit__(self, *exc):
            journal.append("off")

    def laps(*, undo_first=False):
        journal.clear()
        return Laps(Fixed("do", journal), 8, Fixed("undo", journal), 4, things=0.25, undo_first=undo_first)

    assert laps().run(3.0, meter=On()) == (4.0, 4.0), "two laps of 2 s, two things each"
    assert journal == ["on", ("do", 8), "off", ("undo", 4)] * 2
    assert laps(undo_first=True).run(0.0, meter=On()) == (2.0, 2.0)
    assert journal == [("undo", 4), "on", ("do", 8), "off"]
    assert laps().run(1e9, 3) == (4.0, 4.0)


def test_calls_that_are_not_all_made_are_no_lap():
    class Short(Fixed):
        def run(self, seconds, most=0):
            return most - 1, 1.0

    with pytest.raises(RuntimeError, match="7 calls of 8"):
        Laps(Short("do", []), 8, Fixed("undo", []), 8, things=1.0, undo_first=False).run(1.0)


def test_things_are_counted_and_calls_that_can_be_made_once_end():
    journal = []
    load = Counted(Fixed("load", journal), 250.0, 10)
    assert load.run(1.0, 4) == (1000.0, 2.0)
    assert load.run(1.0) == (1500.0, 2.0)
    assert journal == [("load", 4), ("load", 6)]
    with pytest.raises(RuntimeError, match="no more calls"):
        load.run(1.0)
    assert Counted(Fixed("load", journal), 0.5).run(1.0, 4) == (2.0, 2.0)


class Elsewhere:
    """A server in a guest: what it exports is not here."""

    def __init__(self, server):
        self.lay_out, self.host, self.tcp, self.mountd = lambda size: None, server.host, server.tcp, server.mountd


def test_a_server_whose_directory_is_not_here_is_measured_all_the_same(tmp_path):
    server = RdmaNfsd(tmp_path)
    try:
        there = asyncio.run(prepare(server))
        assert asyncio.run(prepare(Elsewhere(server))) == there
    finally:
        server.stop()


@pytest.mark.timeout(600)
def test_every_other_scenario_is_answered_with_success(tmp_path, monkeypatch):
    monkeypatch.setattr(fixtures, "MANY_NAMES", 2000)
    monkeypatch.setattr(calls, "TARRED", 100)
    monkeypatch.setattr(calls, "OFFSETS", 64)
    chosen = [scenario for scenario in MORE if "cold" not in scenario.needs]  # a file of a GiB
    with ExitStack() as ends:
        server = RdmaNfsd(tmp_path)
        ends.callback(server.stop)
        files = asyncio.run(prepare(server, needs=needed(chosen)))
        assert sum(page.entries for page in files.pages) in (2000, 2002)
        for scenario in chosen:
            scenario.fresh(server)
            with scenario.load(server, files, scenario.transports[0]) as load:
                figures = cost(server, load, 0.01)
            assert figures["cpu_us"] >= 0, scenario.name
            assert figures["calls_per_s"] > 0, scenario.name
        assert not list((server.export / "tar").iterdir()), "what was unpacked is gone"
        assert not list(server.export.glob("new *"))
        assert len(list((server.export / "names").iterdir())) == 1024
