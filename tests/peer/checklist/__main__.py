"""Put the questions to a server; see the package."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Container, Mapping

from rpcrdma.memory import Pool
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp.provider import SoftIwarp
from tests.nfs3_client import Nfs3Client
from tests.peer.checklist import backward, others, rfc8166
from tests.peer.checklist.link import QUESTIONS, Differs, Question, Target

MODULES = (rfc8166, others, backward)
PATIENCE = 3.0
LIMIT = 60.0
"""Seconds for one question."""


async def put(question: Question, target: Target) -> str:
    """How the server differs from what the items demand; empty if it does not."""
    try:
        async with asyncio.timeout(LIMIT):
            await question(target)
    except Differs as differs:
        return str(differs)
    except ConnectionError as lost:
        if all(peer.reason is None for peer in target.peers):
            return str(lost)
        return f"the connection is lost ({lost})"
    except TimeoutError:
        return "there is no answer"
    finally:
        await target.leave()
    return ""


async def ask(
    host: str,
    port: int,
    mountd: int,
    path: tuple[bytes, ...] = (b"export",),
    only: Container[str] = (),
    patience: float = 0.0,
) -> Mapping[str, str]:
    """How the server at an address differs, by item; ``only`` some questions, by the names of their functions."""
    async with await Nfs3Client.connect(host, mountd) as client:
        root = (await client.mount("/export")).data
    pool = Pool(256 << 20)
    provider = SoftIwarp(pool)
    target = Target(provider, pool.account(64 << 20), ListenAddress(host, port), root, path, patience)
    answers: dict[Question, str] = {}
    try:
        for question in QUESTIONS.values():
            if question not in answers and (not only or question.__name__ in only):
                started = time.monotonic()
                answers[question] = await put(question, target)
                seconds = time.monotonic() - started
                print(f"{question.__name__}, {seconds:.1f} s: {answers[question] or 'as demanded'}", file=sys.stderr)
    finally:
        await provider.close()
    return {item: answers[question] for item, question in QUESTIONS.items() if question in answers}


def main() -> None:
    """Print how the server differs, as JSON."""
    parser = argparse.ArgumentParser(description="Put the questions to a server.")
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("mountd", type=int)
    parser.add_argument("--root", action="store_true", help="the export is NFSv4's root")
    parser.add_argument("--only", action="append", default=[], metavar="QUESTION", help="a question by its name")
    options = parser.parse_args()
    path = () if options.root else (b"export",)
    asking = ask(options.address, options.port, options.mountd, path, options.only, PATIENCE)
    print(json.dumps(asyncio.run(asking), indent=1))


if __name__ == "__main__":
    main()
