"""Put the questions to a server; see the package."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping

from nfsd.client.url import Url
from nfsd.conformance.demands import ITEMS
from nfsd.conformance.run import PATIENCE, Answer, Options, ask
from tests.peer.checklist import backward

MODULES = (backward,)


def by_item(answers: list[Answer]) -> Mapping[str, str]:
    """How the server differs, by the items that a responder of RPC-over-RDMA is measured by."""
    return {item.name: answer.differs for answer in answers for item in answer.items if item.name in ITEMS}


def told(answer: Answer) -> None:
    """Say what a question came to."""
    print(f"{answer.question}, {answer.seconds:.1f} s: {answer.differs or 'as demanded'}", file=sys.stderr)


def main() -> None:
    """Print how the server differs, as JSON."""
    parser = argparse.ArgumentParser(description="Put the questions to a server.")
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("mountd", type=int)
    parser.add_argument("--root", action="store_true", help="the export is NFSv4's root")
    parser.add_argument("--only", action="append", default=[], metavar="QUESTION", help="a question by its name")
    options = parser.parse_args()
    url = Url("rdma", options.address, options.port, (b"export",))
    how = Options(options.only, patience=PATIENCE, mount_port=options.mountd, root="/" if options.root else None)
    print(json.dumps(by_item(asyncio.run(ask(url, how, told))), indent=1))


if __name__ == "__main__":
    main()
