"""The arguments of the commands that ask a running server."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

_FINDING: Final = """\
The command finds a server with a usual state directory by itself. Otherwise --config or --state-dir names it.
Only root and the server's own user may use it.
"""
_TABLES: Final = {
    "clients": (
        "list clients, what they hold and what they do",
        """\
List each client record of NFSv4 and of NFSv3's lock manager, and each other address that uses an export or has used
one: its lease, what it holds, its connections, and how much it has read and written. Reads and writes are counted by
address. An address without a version has no record and no mount by NFSv3: its NFSv4 client has left.
""",
    ),
    "sessions": ("list sessions of NFSv4.1 and 4.2", "List each session with its slots and connections.\n"),
    "opens": ("list files that clients have open", "List each open of NFSv4 and of NFSv3's lock manager.\n"),
    "locks": ("list locked ranges of files", "List each locked range, and each lock request that waits.\n"),
    "inflight": ("list calls that wait now", "List each call that waits for a disk, a lock, a delegation…\n"),
    "exports": ("list exports and how they are used", "List each export with its clients, traffic and speed.\n"),
}
ADMIN_COMMANDS: Final = (
    *_TABLES, "stats", "top", "evict", "forget", "drain", "log-level", "reload", "read-only", "processes", "restart",
    "faults",
)  # fmt: skip


def add_admin_commands(commands: Any) -> None:
    """Add them to the parser's subcommands."""

    def add(name: str, brief: str, text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(
            name, help=brief, description=text + "\n" + _FINDING, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.add_argument("--config", metavar="FILE", help="the configuration of the running server")
        command.add_argument("--state-dir", metavar="DIR", help="its state directory")
        return command

    for name, (brief, text) in _TABLES.items():
        command = add(name, brief, text)
        command.add_argument("--json", action="store_true", help="print the rows as JSON, with all fields")
        command.add_argument("--limit", type=int, default=1000, metavar="N", help="rows at most; the default is 1000")
    text = "Print the server's counters since its start, or with --seconds what it does now.\n"
    stats = add("stats", "print counters and rates", text)
    stats.add_argument("--json", action="store_true", help="print every counter as JSON")
    stats.add_argument("--seconds", type=float, default=0.0, metavar="N", help="count for N seconds instead")
    text = """\
Show a live screen: exports and clients by rate and time, operations, RDMA, memory, and what is slow and why. Keys: q
quits, s sorts by octets, calls or time, p pauses. Without a terminal it is printed once, or --count times.
"""
    top = add("top", "show a live screen of who does what, and how fast", text)
    top.add_argument(
        "--interval", type=_pace, default=1.0, metavar="N", help="seconds between updates; the default is 1"
    )
    top.add_argument("--count", type=int, default=0, metavar="N", help="end after N updates")
    orders = ("octets", "calls", "time")
    top.add_argument("--sort", choices=orders, default="octets", help="sort exports and clients by this")
    _add_acts(add)


def _pace(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise ValueError
    return seconds


def _add_acts(add: Callable[[str, str, str], argparse.ArgumentParser]) -> None:
    text = """\
Revoke all state of a client (opens, locks, delegations, sessions) and close its connections. Others can have what it
held at once. The client loses data that it has not written yet. It may come back if an export admits it. To keep it
out, first change "clients" of the exports, and reload.
"""
    evict = add("evict", "revoke all state of a client", text)
    evict.add_argument("client", metavar="CLIENT", help="an address, or the id that `clients` shows")
    text = "Drop the state of clients whose lease has expired, instead of keeping it until somebody else wants it.\n"
    forget = add("forget", "drop the state of clients whose lease has expired", text)
    forget.add_argument("client", nargs="?", default="", metavar="CLIENT", help="only this client: an address or an id")
    text = """\
Stop serving an export, so that its file system can be unmounted or checked. Delegations are recalled, calls in flight
may finish, and then what clients still hold is revoked. `rdma-nfsd reload` serves the export again.
"""
    drain = add("drain", "stop serving an export until the next reload", text)
    drain.add_argument("export", metavar="EXPORT", help="its name for clients, or its directory")
    drain.add_argument("--seconds", type=float, default=10.0, metavar="N", help="wait at most N; the default is 10")
    drain.add_argument("--dry-run", action="store_true", help="only show who holds what of it")
    text = "Show the level of the log, or set it until the configuration is read again.\n"
    level = add("log-level", "show or set the level of the log", text)
    level.add_argument("level", nargs="?", default="", metavar="LEVEL", help="debug, info, warning or error")
    text = "Make the server read its configuration again, as SIGHUP does, and show what has changed for whom.\n"
    reload = add("reload", "read the configuration again", text)
    reload.add_argument("--dry-run", action="store_true", help="change nothing, only show what would change")
    text = """\
Make all exports read-only, whatever the configuration says, until `read-only off` or the next start. Without a word,
show the setting. Write delegations are recalled first. Meanwhile the server still accepts what their holders write.
"""
    read_only = add("read-only", "make the whole server read-only, or as configured", text)
    read_only.add_argument("switch", nargs="?", choices=("on", "off"), help="turn it on or off")
    read_only.add_argument("--seconds", type=float, default=10.0, metavar="N", help="wait at most N; the default is 10")
    text = "List the processes that serve together (server.processes), and how they are.\n"
    processes = add("processes", "list the processes that serve together", text)
    text = """\
Restart the processes that serve together (server.processes), one after the other, or one of them. Each answers the
calls in flight, ends, and is started again. Its clients connect again and reclaim what they had; the others go on.
"""
    restart = add("restart", "restart processes that serve together, one by one", text)
    restart.add_argument("process", nargs="?", type=int, metavar="N", help="only this one, as `processes` numbers them")
    text = """\
Show what a server that was started with --faults does to calls on purpose, and how often. Or give it other rules.
"""
    faults = add("faults", "show or change how a test server misbehaves", text)
    faults.add_argument("file", nargs="?", metavar="FILE", help="these are the rules from now on, a YAML file")
    faults.add_argument("--clear", action="store_true", help="there are no rules from now on")
    for command in (evict, forget, drain, level, reload, read_only, processes, restart, faults):
        command.add_argument("--json", action="store_true", help="print the answer as JSON")
