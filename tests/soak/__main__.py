"""Run the soak; see the package."""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.soak.guest import LinuxGuest
from tests.soak.report import Report
from tests.soak.run import Options, Run
from tests.soak.server import Server

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    """Of ``90``, ``90s``, ``10m``, ``2h``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: such as 90s, 10m or 2h")
    return float(found[1]) * _UNITS[found[2]]


async def run(soak: Run) -> Report:
    """To its end, or until SIGTERM or SIGINT ends it early."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, soak.end)
    return await soak.go()


def main() -> int:
    """The exit status: 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--time", type=seconds, default=3600.0, help="such as 10m; the default is 1h")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", type=float, default=Options.calm, help="part of the time without kills, at the end")
    parser.add_argument("--rate", type=float, default=Options.rate, help="connections made and dropped, a second")
    parser.add_argument("--clients", type=int, default=Options.clients, help="of NFSv3, and as many that lock")
    parser.add_argument(
        "--kills", type=int, default=0, help="SIGKILLs that there are to be; several in a row, if need be"
    )
    parser.add_argument(
        "--guest", action="store_true", help="a Linux client, too, in a guest that mounts over RDMA (siw)"
    )
    parser.add_argument("--devices", action="store_true", help="remove that guest's RDMA device now and then")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep the server's log there")
    chosen = parser.parse_args()
    options = Options(
        chosen.time,
        chosen.seed,
        chosen.calm,
        clients=chosen.clients,
        rate=chosen.rate,
        kills=chosen.kills,
        devices=chosen.devices,
    )
    with ExitStack() as stack:
        guest = stack.enter_context(LinuxGuest(chosen.time + 1800)) if chosen.guest or chosen.devices else None
        server = stack.enter_context(Server(forked=bool(chosen.kills)))
        report = asyncio.run(run(Run(options, server, guest)))
        if chosen.log:
            shutil.copyfile(server.log, chosen.log)
    if chosen.json:
        chosen.json.write_text(report.as_json() + "\n")
    print(report.table())
    for finding in report.findings:
        print(f"\nFOUND {finding}", file=sys.stderr)
    return int(bool(report.findings))


if __name__ == "__main__":
    sys.exit(main())
