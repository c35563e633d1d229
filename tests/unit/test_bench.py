"""The measuring of ``python -m bench``: loads check replies and count them, comparisons find what is worse."""

import socket
import struct
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bench import copies, document, flames, guest_flames, report
from bench.__main__ import STUDIES, parser
from bench.calls import Files
from bench.generator import CallFailed, Generator, Loads
from bench.scenarios import BY_NAME, SCENARIOS
from bench.servers import Cpu, LocalServer, Server
from bench.study import medians
from bench.turns import take_turns

CALL = bytes(40)
ACCEPTED = struct.pack(">6I", 1, 0, 0, 0, 0, 0)
FAILED = struct.pack(">6I", 1, 0, 0, 0, 0, 70)
REFUSED = struct.pack(">6I", 1, 0, 0, 0, 3, 0)


def answer(sock, reply, change):
    """Answer each record of the generator's with ``reply`` behind its XID, until the connection ends."""
    data = b""
    with sock, suppress(ConnectionError):
        while more := sock.recv(65536):
            data += more
            out = b""
            while len(data) >= 4 + len(CALL):
                xid = struct.unpack_from(">I", data, 4)[0] ^ change
                out += struct.pack(">II", 1 << 31 | 4 + len(reply), xid) + reply
                data = data[4 + len(CALL) :]
            sock.sendall(out)


@pytest.fixture
def connected():
    """Makes so many connections to a server that gives this reply; its threads end with the test."""
    with ExitStack() as ends:

        def connect(number, reply=ACCEPTED, change=0):
            ours = []
            for _ in range(number):
                mine, theirs = socket.socketpair()
                thread = threading.Thread(target=answer, args=(theirs, reply, change))
                thread.start()
                ends.callback(thread.join)
                ends.enter_context(mine)
                ours.append(mine)
            return ours

        yield connect


def test_a_load_makes_as_many_calls_as_it_is_asked_for(connected):
    (sock,) = connected(1)
    load = Generator(sock.fileno(), [CALL], 4)
    assert load.run(60, 100)[0] == 100
    assert 0 < load.percentile(0.5) <= load.percentile(0.99)
    assert load.run(60, 2)[0] == 2, "fewer than may be outstanding"


def test_many_connections_share_the_calls(connected):
    loads = Loads(Generator(sock.fileno(), [CALL], 4) for sock in connected(5))
    answered, seconds = loads.run(60, 1000)
    assert answered == 1000
    assert seconds > 0
    assert loads.percentile(0.99) > 0


def test_a_load_ends_with_its_time(connected):
    loads = Loads(Generator(sock.fileno(), [CALL], 4) for sock in connected(2))
    answered, seconds = loads.run(0.05)
    assert answered >= 8
    assert 0.05 <= seconds < 60


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(("reply", "status", "refused"), [(FAILED, 70, False), (REFUSED, 3, True)])
def test_a_failed_call_ends_the_run_and_says_how(connected, number, reply, status, refused):
    loads = Loads(Generator(sock.fileno(), [CALL], 4) for sock in connected(number, reply))
    with pytest.raises(CallFailed, match="a call failed") as failure:
        loads.run(60, 100)
    assert (failure.value.status, failure.value.refused) == (status, refused)


def test_a_server_that_does_not_answer_ends_the_run():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 1))
        with pytest.raises(RuntimeError, match="the server does not answer"):
            Generator(ours.fileno(), [CALL], 4).run(60, 100)


def test_calls_may_fail_when_that_is_said(connected):
    (sock,) = connected(1, FAILED)
    assert Generator(sock.fileno(), [CALL], 4, lenient=True).run(60, 100)[0] == 100


def test_a_reply_to_no_call_ends_the_run(connected):
    (sock,) = connected(1, ACCEPTED, 1 << 20)
    with pytest.raises(RuntimeError, match="a reply to no call"):
        Generator(sock.fileno(), [CALL], 4).run(60, 100)


def test_what_one_call_gives_the_next_call_of_its_slot_gets():
    depth, given_at, taken_at = 3, 24, 40
    opens = [bytes(36) + b"OPEN" + bytes(16) for _ in range(depth)]
    closes = [bytes(36) + b"SHUT" + b"lacking lacking." for _ in range(depth)]
    ours, theirs = socket.socketpair()
    seen = []

    def serve():
        gifts, given, data = iter(range(1, 1000)), {}, b""
        with theirs, suppress(ConnectionError):
            while more := theirs.recv(65536):
                data += more
                while len(data) >= 60:
                    call, data = data[4:60], data[60:]
                    slot, kind = int.from_bytes(call[:4], "big") & 0xFFF, call[36:40]
                    if kind == b"OPEN":
                        given[slot] = b"%016d" % next(gifts)
                        seen.append(True)
                        reply = ACCEPTED[:20] + given[slot]
                    else:
                        seen.append(call[40:] == given.pop(slot))
                        reply = ACCEPTED + bytes(12)
                    theirs.sendall(struct.pack(">I", 1 << 31 | 4 + len(reply)) + call[:4] + reply)

    thread = threading.Thread(target=serve)
    thread.start()
    with ours:
        pairs = [call for both in zip(opens, closes, strict=True) for call in both]
        load = Generator(ours.fileno(), pairs, depth, pairs=(given_at, taken_at), lenient=True)
        assert load.run(60, 31)[0] == 31, "an odd number: the next run goes on with what has been opened"
        assert load.run(60, 29)[0] == 29
        with pytest.raises(ValueError, match="not a chain of 2 for each"):
            Generator(ours.fileno(), pairs, depth + 1, pairs=(given_at, taken_at))
    thread.join()
    assert seen == [True] * 60


def test_rounds_become_medians_by_key():
    rounds = [[{"over": "tcp", "n": 1, "us": us}, {"over": "tcp", "n": 4, "us": 9.0}] for us in (1.0, 3.0, 20.0)]
    assert medians(rounds, ("over", "n")) == [{"over": "tcp", "n": 1, "us": 3.0}, {"over": "tcp", "n": 4, "us": 9.0}]


class Replier(Server):
    """Gives each connection the next of some replies, all its calls the same."""

    root4 = "/"

    def __init__(self, name, connected, replies):
        self.name, self.connected, self.replies = name, connected, iter(replies)
        self.seconds = 0.0

    def lay_out(self, size):
        raise NotImplementedError

    def cpu(self):
        self.seconds += 1.0
        return Cpu(self.seconds, 0.0, self.seconds)

    def copies(self, work):
        return {"kernel_in": 8.0 * work()}

    def memory(self):
        return 0

    def connect(self, transport):
        (sock,) = self.connected(1, next(self.replies))
        return sock

    def stop(self):
        raise NotImplementedError


def test_a_scenario_that_fails_is_noted_and_the_others_go_on(connected):
    chosen = [replace(BY_NAME[name], calls=lambda files, size: [CALL]) for name in ("getattr", "create-stat-unlink")]
    ours = Replier("rdma-nfsd", connected, [ACCEPTED] * 4)
    theirs = Replier("ganesha", connected, [FAILED, ACCEPTED, FAILED, REFUSED])
    found = take_turns([(each, Files(b"", b"")) for each in (ours, theirs)], chosen, ["tcp"], 2, 0.01)
    assert found["rdma-nfsd"].failures == {}
    assert {key: len(rounds) for key, rounds in found["rdma-nfsd"].rounds.items()} == {
        "getattr tcp": 2,
        "create-stat-unlink tcp": 2,
    }
    assert found["ganesha"].failures == {
        "getattr tcp": ["NFS3ERR_STALE"] * 2,
        "create-stat-unlink tcp": ["a call failed: RPC status 3"],
    }
    results = {name: one.result() | {"peak_memory": 0} for name, one in found.items()}
    assert results["rdma-nfsd"]["scenarios"]["getattr tcp"]["kernel_in"] == 8.0 * 3072
    lines = report.scenarios({"limits": BOUNDS, "servers": results})
    (line,) = [line for line in lines if line.startswith("| getattr | tcp | failed: NFS3ERR_STALE |")]
    assert line.count("|") == lines[-2].count("|")
    assert "(failed: a call failed: RPC status 3)" in lines[-2] + lines[-1]


class Sleeper(Replier, LocalServer):
    """Has a process, and notes whether that is all that runs while it is asked."""

    def __init__(self, name, connected, process, everybody):
        Replier.__init__(self, name, connected, [ACCEPTED] * 2)
        self.process, self.everybody, self.seen = process, everybody, []

    def connect(self, transport):
        self.seen.append(all(eventually(each is not self, each.process) for each in self.everybody))
        return Replier.connect(self, transport)


def stopped(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def eventually(stop, process):
    until = time.monotonic() + 60
    while stopped(process) != stop and time.monotonic() < until:
        time.sleep(0.01)
    return stopped(process) == stop


def test_whose_turn_it_is_not_does_not_run(connected):
    servers = []
    scenario = replace(BY_NAME["getattr"], calls=lambda files, size: [CALL])
    with ExitStack() as ends:
        for name in ("one", "other"):
            process = ends.enter_context(subprocess.Popen(["sleep", "1000"]))
            ends.callback(process.kill)
            servers.append(Sleeper(name, connected, process, servers))
        measured = []

        def before(turn):
            measured.append([eventually(True, each.process) for each in servers])

        found = take_turns([(each, Files(b"", b"")) for each in servers], [scenario], ["tcp"], 2, 0.01, before)
        assert [each.failures for each in found.values()] == [{}, {}]
        assert measured == [[True, True]] * 2, "the machine is measured"
        assert [each.seen for each in servers] == [[True] * 2] * 2
        assert all(eventually(False, each.process) for each in servers), "they can be ended now"


def test_what_the_kernel_copies_is_read_from_straces_lines():
    lines = """\
70 recvmsg(17, {msg_name=NULL, msg_iov=[{iov_base="", iov_len=65536}], msg_iovlen=1, msg_flags=0}, MSG_DONTWAIT) = 128
71 pread64(9, "", 4096, 40960) = 4096
70 sendmsg(17, {msg_name=NULL, msg_namelen=0}, MSG_DONTWAIT|MSG_NOSIGNAL) = 4224
70 sendmsg(17, {msg_name=NULL, msg_namelen=0}, MSG_NOSIGNAL|MSG_ZEROCOPY) = 70000
70 splice(3, NULL, 4, NULL, 65536, 0) = 65536
70 recvmsg(17, {msg_name=NULL}, MSG_DONTWAIT) = -1 EAGAIN (Resource temporarily unavailable)
70 sendmmsg(5, [{msg_hdr={msg_iov=[{iov_base="", iov_len=4}]}, msg_len=4}, {msg_hdr={}, msg_len=20}], 2, 0) = 2
70 sendmmsg(5, [{msg_hdr={msg_iovlen=1}, msg_len=100}, {msg_hdr={msg_iovlen=1}}], 2, MSG_DONTWAIT) = 1
+++ exited with 0 +++
""".splitlines()
    assert copies.octets(lines) == (128 + 4096, 4224 + 4 + 20 + 100)


def test_without_strace_nothing_is_said_of_the_kernels_copies(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert copies.by_system_calls(1, lambda: pytest.fail("nothing is measured")) == {}
    (tmp_path / "strace").write_text("#!/bin/sh\necho 'strace: attach: Operation not permitted' >&2\nexit 1\n")
    (tmp_path / "strace").chmod(0o755)
    assert copies.by_system_calls(1, lambda: pytest.fail("nothing is measured")) == {}


BOUNDS = {"round_trip_us": 4.0, "pread_us": 1.0, "pwrite_us": 1.0}


def result(cpu, many=2.0):
    """What a run finds, made up."""
    scenario = {"getattr tcp": {"cpu_us": cpu}}
    studies = {
        "connections": [
            {"call": "getattr", "over": "tcp", "connections": n, "cpu_us": us, "calls_per_s": 1e5}
            for n, us in ((1, 2.0), (256, many))
        ]
    }
    return {"limits": BOUNDS, "servers": {"rdma-nfsd": {"scenarios": scenario}}, "studies": studies}


def test_the_comparison_names_what_is_worse_and_nothing_else():
    assert report.compare(result(2.2), result(2.0), 0.15, STUDIES) == []
    assert report.compare(result(3.0), result(2.0), 0.15, STUDIES) == ["getattr tcp: 0.60, 0.40 before"]
    (line,) = report.compare(result(2.0, many=9.0), result(2.0), 0.15, STUDIES)
    assert "256 connections" in line
    assert report.compare(result(2.0), {**result(2.0), "studies": {}}, 0.15, STUDIES) == []


def in_guest(ours, theirs):
    """The guest's part of what a run finds, made up."""
    times = {"calls_per_s": 1000.0, "p50_us": 1.0, "p99_us": 2.0}
    return {
        "guest": {
            "accelerator": "tcg",
            "kernel": "6.1",
            "processors": 2,
            "servers": {
                "rdma-nfsd-verbs": {
                    "scenarios": {
                        key: {"cpu_us": ours, "work_requests": 2.0, "copied": 5.0} | times
                        for key in ("getattr tcp", "getattr rdma")
                    },
                    "failures": {},
                },
                "kernel": {
                    "scenarios": {"getattr tcp": {"cpu_us": theirs} | times},
                    "failures": {"getattr rdma": ["NFS3ERR_IO"], "lookup tcp": ["NFS3ERR_STALE"]},
                },
            },
        }
    }


def test_servers_in_a_guest_are_beside_each_other_and_not_beside_the_machine():
    *_, tcp, rdma, lookup = report.guest(result(2.0) | in_guest(300.0, 200.0))
    assert "| getattr | tcp | 300 | 200 | **1.50** | 1,000 | 1,000 | **1.00** |" in tcp
    assert tcp.endswith("| 5 |  |")
    assert "| 300 | failed: NFS3ERR_IO |  |" in rdma
    assert rdma.endswith("| 2.00 |")
    assert "| lookup | tcp | - | failed: NFS3ERR_STALE |" in lookup
    assert not report.has_failed(result(2.0) | in_guest(300.0, 200.0)), "the kernel's server failed, not ours"


def test_the_comparison_of_guests_is_of_ratios():
    before = result(2.0) | in_guest(300.0, 200.0)
    assert report.compare(result(2.0) | in_guest(900.0, 600.0), before, 0.15, STUDIES) == []
    (line,) = report.compare(result(2.0) | in_guest(300.0, 100.0), before, 0.15, STUDIES)
    assert line == "getattr tcp in a guest, times the kernel's server: 3.00, 1.50 before"


def test_another_clock_is_no_regression():
    slower = result(4.0, many=4.0)
    slower["limits"] = {name: 2 * value for name, value in slower["limits"].items()}
    for row in slower["studies"]["connections"]:
        row["cpu_us"] = 4.0
    assert report.compare(slower, result(2.0), 0.01, STUDIES) == []


def test_the_documents_have_a_place_for_everything():
    places = {document.DOCUMENT: ("summary", "scenarios", "places", "guest", "goals", "compare")}
    places[document.STUDIES] = tuple(study.name for study in STUDIES)
    for page, names in places.items():
        for name in names:
            assert "put here" in document.put(page.read_text(), name, ["put here"])
    with pytest.raises(ValueError, match="no <!-- begin nothing"):
        document.put(document.DOCUMENT.read_text(), "nothing", [])


def test_help_and_documents_name_every_scenario_and_study():
    words = parser().format_help()
    for scenario in SCENARIOS:
        assert scenario.name in words
        assert f"`{scenario.name}`" in document.DOCUMENT.with_name("measuring.md").read_text()
    for study in STUDIES:
        assert study.name in words
        assert f"`{study.name}`" in document.STUDIES.read_text()


def test_flame_graphs_count_what_is_called_by_what():
    script = """
    ffff  __pyx_f_4nfsd_2v3_6direct_9DirectNfs_read
    fffe  uv_run
    fffd  [unknown]

    ffff  pread64
    ffff  __pyx_f_4nfsd_2v3_6direct_9DirectNfs_read
    fffe  uv_run
""".splitlines()
    root = flames.tree(flames.stacks(script))
    assert root.samples == 2
    assert list(root.calls) == ["uv_run"]
    read = root.calls["uv_run"].calls["DirectNfs.read"]
    assert (read.samples, read.calls["pread64"].samples) == (2, 1)
    picture = flames.svg(root, "a < b")
    assert "a &lt; b" in picture
    assert "<title>pread64, 50.0 %</title>" in picture


def test_a_guests_flame_graph_has_threads_below_and_no_idling():
    script = """\
swapper
\tffff native_safe_halt
\tfffe default_idle_call

swapper
\tffff tcp_v4_rcv
\tfffe handle_softirqs

python
\tffff __pyx_f_4nfsd_2v3_6direct_9DirectNfs_read
\tfffe uv_run
\tfffd main

perf
\tffff ext4_write
""".splitlines()
    assert list(guest_flames.threads(script)) == [
        ["swapper", "handle_softirqs", "tcp_v4_rcv"],
        ["python", "uv_run", "DirectNfs.read"],
    ]


def test_cythons_names_are_readable():
    assert flames.readable("__pyx_pw_6uvloop_4loop_4Loop_44run_until_complete") == "Loop.run_until_complete"
    assert flames.readable("__x64_sys_preadv") == "__x64_sys_preadv"
