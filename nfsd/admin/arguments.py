"""The arguments of the commands that ask a running server."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

_FINDING: Final = """\
The server is found by itself where one runs with a usual state directory; otherwise by --config or --state-dir.
Root and the server's own user may ask.
"""
_TABLES: Final = {
    "clients": (
        "who is here: clients, what they hold and do",
        """\
Each client record of NFSv4 and of NFSv3's lock manager, and each address that only NFSv3 is spoken from: its lease,
what it holds, its connections, and how much it has read and written, by address.
""",
    ),
    "sessions": ("the sessions of NFSv4.1 and 4.2", "Each session, its slots and connections.\n"),
    "opens": ("files that clients have open", "Each open of NFSv4, and of NFSv3's lock manager, with its file.\n"),
    "locks": ("locked ranges of files", "Each range that is locked, and each that somebody waits for.\n"),
    "inflight": ("calls that wait for something now", "Each call that waits: for a disk, a lock, a delegation…\n"),
    "exports": ("what is served, to how many, how much", "Each export, and how it is used.\n"),
}
ADMIN_COMMANDS: Final = (*_TABLES, "stats", "top", "evict", "forget", "drain", "log-level", "reload", "read-only")


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
        command.add_argument("--json", action="store_true", help="print the rows as JSON, every field of them")
        command.add_argument("--limit", type=int, default=1000, metavar="N", help="rows at most; the default is 1000")
    stats = add("stats", "counters and rates", "What the server has done since its start, or (--seconds) does now.\n")
    stats.add_argument("--json", action="store_true", help="print every counter as JSON")
    stats.add_argument("--seconds", type=float, default=0.0, metavar="N", help="count for so long instead")
    text = """\
A live screen: exports and clients by rate and time, operations, RDMA, memory, what is slow and why. Keys: q ends, s
sorts by octets, calls or time, p pauses. Where the output is no terminal, it is printed once, or --count times.
"""
    top = add("top", "a live screen of who does what, how fast", text)
    top.add_argument("--interval", type=_pace, default=1.0, metavar="N", help="seconds between looks; the default is 1")
    top.add_argument("--count", type=int, default=0, metavar="N", help="end after so many looks")
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
Take everything from a client (opens, locks, delegations, sessions) and close its connections. Others get at once what
it held; what it had not written is lost to it. It may come again as long as an export is for it: to keep it out,
change clients: of the exports first, and reload.
"""
    evict = add("evict", "take everything from a client", text)
    evict.add_argument("client", metavar="CLIENT", help="an address, or the id that `clients` shows")
    text = "Give up what clients hold whose lease is over, instead of keeping it until somebody else wants it.\n"
    forget = add("forget", "give up what clients that are away hold", text)
    forget.add_argument("client", nargs="?", default="", metavar="CLIENT", help="only this one: an address or an id")
    text = """\
Stop serving an export, so that its file system can be unmounted or checked: recall its delegations, let calls in flight
end, take what clients still hold of it. It is served again after `rdma-nfsd reload`.
"""
    drain = add("drain", "stop serving an export until the next reload", text)
    drain.add_argument("export", metavar="EXPORT", help="its name for clients, or its directory")
    drain.add_argument(
        "--seconds", type=float, default=10.0, metavar="N", help="wait so long at most; the default is 10"
    )
    drain.add_argument("--dry-run", action="store_true", help="only say who holds what of it")
    level = add("log-level", "show or set the log's level", "Until the configuration is read again.\n")
    level.add_argument("level", nargs="?", default="", metavar="LEVEL", help="debug, info, warning or error")
    text = "Have the server read its configuration again, as SIGHUP does, and say what has changed, for whom.\n"
    reload = add("reload", "read the configuration again", text)
    reload.add_argument("--dry-run", action="store_true", help="change nothing, only say what would change")
    text = """\
Let no client change anything on any export, whatever the configuration says, until `read-only off` or the next start;
without a word, say how it is. Write delegations are called back first; what clients write while they are waited for is
still taken.
"""
    read_only = add("read-only", "let nobody change anything, or as configured", text)
    read_only.add_argument("switch", nargs="?", choices=("on", "off"), help="turn it on or off")
    read_only.add_argument(
        "--seconds", type=float, default=10.0, metavar="N", help="wait so long at most; the default is 10"
    )
    for command in (evict, forget, drain, level, reload, read_only):
        command.add_argument("--json", action="store_true", help="print the answer as JSON")
