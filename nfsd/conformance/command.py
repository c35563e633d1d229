"""The command ``rdma-nfsd conformance``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import runpy
import sys
from pathlib import Path
from typing import Final

DESCRIPTION: Final = """\
Ask an NFS server whether it does what the specifications demand: RPC (RFC 5531), NFSv3 (RFC 1813), sessions of NFSv4.1
(RFC 8881) with their callbacks, and over RDMA also RPC-over-RDMA (RFC 8166, 8167), NFS on it (RFC 8267), its private
data (RFC 8797), and version Two where the server has it; and random messages. Each question has connections of its
own, on which every octet is made by hand, right or wrong on purpose.

The questions work in a directory of their own, which they make in the export and remove at the end. They call as
root with AUTH_SYS, so the export must be writable for root from here, from any port. Some of them end connections, and
some may crash a server: don't ask one that others need.
"""

EPILOG: Final = """\
URLs:
  rdma://HOST[:PORT]/EXPORT   over iWARP, which the command speaks itself: rdma-nfsd, or a Linux server with siw;
                              with --provider verbs, over an RDMA device of this host
  tcp://HOST[:PORT]/EXPORT    over TCP

examples:
  rdma-nfsd conformance rdma://server/export
  rdma-nfsd conformance tcp://server/export --junit found.xml --captures /tmp/captures

exit status:
  0  the server does all that a MUST demands
  1  it does not
  2  it cannot be asked, or the command line is wrong
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Its options."""
    command.add_argument("url", metavar="URL", nargs="?", help="the server and an export of its")
    command.add_argument("--list", action="store_true", help="ask nothing; list the questions")
    command.add_argument(
        "--only", action="append", default=[], metavar="QUESTION", help="ask this one; may be repeated"
    )
    command.add_argument(
        "--provider", choices=("softiwarp", "verbs"), default="softiwarp",
        help="softiwarp: iWARP over an ordinary TCP socket (default); verbs: an RDMA device of this host",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="print everything as JSON")
    command.add_argument("--junit", metavar="FILE", help="write the result as JUnit's XML")
    text = "write what passed for each question that the server fails to DIR/QUESTION.pcapng"
    command.add_argument("--captures", default="", metavar="DIR", help=text)
    command.add_argument(
        "--cases", action="append", default=[], metavar="FILE", help="a Python file of further questions"
    )
    command.add_argument(
        "--mount-port", type=int, metavar="N", help="the TCP port of MOUNT; rpcbind is asked otherwise"
    )
    text = "where the export is below NFSv4's root, if not at its own path; / if it is the root"
    command.add_argument("--v4-path", metavar="PATH", help=text)
    command.add_argument("--seed", type=int, default=1, metavar="N", help="of the random messages; the default is 1")
    text = "how many random messages, in each of the questions with them; the default is 300"
    command.add_argument("--messages", type=int, default=300, metavar="N", help=text)
    text = "seconds after which a message counts as discarded; the default is 3"
    command.add_argument("--patience", type=float, default=3.0, metavar="N", help=text)


def main(parsed: argparse.Namespace) -> int:
    """Ask. Returns the exit status."""
    from nfsd.client import NfsClientError, UrlError
    from nfsd.client.url import parse
    from nfsd.conformance import report
    from nfsd.conformance.run import Answer, CannotAsk, Options, ask, chosen

    def told(answer: Answer) -> None:
        if not parsed.json:
            for line in report.lines([answer]):
                print(line, flush=True)

    def left(text: str) -> None:
        print(f"rdma-nfsd conformance: {text}", file=sys.stderr)

    # Our own end of a connection complains of what a question is about; what it comes to is told below.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        for file in parsed.cases:
            runpy.run_path(file)
        if parsed.list:
            for transport in ("tcp", "rdma"):
                for question, items in chosen(transport, parsed.only):
                    print(f"{transport:5} {question.__name__:20} {', '.join(item.name for item in items)}")
            return 0
        if not parsed.url:
            raise CannotAsk("which server? give a URL, such as rdma://server/export")
        url = parse(parsed.url)
        device = parsed.provider == "verbs"
        if device and url.transport != "rdma":
            raise CannotAsk("--provider verbs is for rdma:// URLs")
        if device and parsed.captures:
            raise CannotAsk("nothing can be captured over a device; leave out --captures")
        unknown = set(parsed.only) - {question.__name__ for question, _ in chosen(url.transport, device=device)}
        if unknown:
            way = "a device" if device else url.transport
            raise CannotAsk(f"no question over {way} is called {', '.join(sorted(unknown))}; see --list")
        if parsed.captures:
            Path(parsed.captures).mkdir(parents=True, exist_ok=True)
        options = Options(
            parsed.only, parsed.captures, parsed.patience, parsed.mount_port, parsed.seed, parsed.messages,
            parsed.v4_path, device,
        )  # fmt: skip
        answers = asyncio.run(ask(url, options, told, left))
        if parsed.junit:
            Path(parsed.junit).write_text(report.as_junit(str(url), answers))
    except (CannotAsk, NfsClientError, UrlError, OSError) as error:
        print(f"rdma-nfsd conformance: {error}", file=sys.stderr)
        return 2
    print(report.as_json(str(url), answers) if parsed.json else report.summary(answers))
    return report.status(answers)
