"""Putting the questions to a server: in a directory made for them, one after the other."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path

from nfsd.client.mount import Mounts
from nfsd.client.rpc import Caller
from nfsd.client.url import Url
from nfsd.conformance import basics, callbacks, others, randomly, rfc8166, sessions, version_two
from nfsd.conformance.basics import directory_of, entries, good, nfs3
from nfsd.conformance.demands import BASICS, ITEMS, Item
from nfsd.conformance.link import (
    INVALIDATED,
    MESSAGES,
    QUESTIONS,
    TRANSPORTS,
    Absent,
    Differs,
    Exchanger,
    Question,
    Target,
    opaque,
    outcome,
)
from nfsd.conformance.relay import Relay
from rpcrdma import client as rpc
from rpcrdma.memory import Pool
from rpcrdma.verbs.device import make_provider
from rpcrdma.verbs.interface import ListenAddress
from rpcrdma.verbs.softiwarp.provider import SoftIwarp

MODULES = (basics, sessions, callbacks, rfc8166, others, version_two, randomly)
LIMIT = 60.0
"""Seconds for one question."""
PATIENCE = 3.0
"""Seconds after which a message counts as discarded."""
_POOL = 256 << 20
_SHARE = 64 << 20


class CannotAsk(Exception):
    """No question can be put; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question came to."""

    question: str
    """Its function's name."""
    items: tuple[Item, ...]
    differs: str
    """How the server differs from what is demanded; empty if it does not."""
    seconds: float
    capture: str = ""
    """The file of what passed, if it differs."""
    absent: str = ""
    """What the server lacks, if that is why it cannot be asked."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked, and how."""

    only: Container[str] = ()
    """Questions by their names; all if empty."""
    captures: str = ""
    """The directory for captures; none are made if empty."""
    patience: float = PATIENCE
    mount_port: int | None = None
    seed: int = 1
    """Of the random messages."""
    messages: int = MESSAGES
    """How many of them."""
    root: str | None = None
    """The export's path from NFSv4's root, if it is not that of the URL."""
    device: bool = False
    """Whether RDMA goes over a device of this host; over the embedded iWARP otherwise."""


async def put(question: Question, target: Target) -> str:
    """How the server differs from what the items demand; empty if it does not. Raises Absent."""
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


def chosen(
    transport: str, only: Container[str] = (), *, device: bool = False
) -> Iterator[tuple[Question, tuple[Item, ...]]]:
    """The questions that can be put over a transport, each with its items."""
    of: dict[Question, list[Item]] = {}
    for name, question in QUESTIONS.items():
        # A question of somebody's own may be about what is not in our lists.
        item = ITEMS.get(name) or BASICS.get(name) or Item(name, "M", "")
        of.setdefault(question, []).append(item)
    for question, items in of.items():
        if device and question in INVALIDATED:
            continue
        if transport in TRANSPORTS[question] and (not only or question.__name__ in only):
            yield question, tuple(items)


async def mounted(url: Url, port: int | None) -> bytes:
    """NFSv3's handle of what the URL names. Raises CannotAsk."""

    async def to_port(number: int) -> Caller:
        over_tcp = rpc.connect(
            url.host, number, transport="tcp", options=rpc.ClientOptions(reconnect=0, connect_timeout=5)
        )
        await over_tcp.open()
        return Caller(over_tcp)

    handle, rest = await Mounts(to_port, url.server, port).mount(url.names)
    if rest:
        raise CannotAsk(f"{url}: name the export itself; the questions make a directory there")
    return handle


async def ask(
    url: Url,
    options: Options,
    told: Callable[[Answer], None] = lambda _: None,
    left: Callable[[str], None] = lambda _: None,
) -> list[Answer]:
    """Put the questions to the server at ``url``; ``told`` hears each answer at once, and ``left`` of a directory that
    could not be removed. Raises CannotAsk, OSError, NfsClientError."""
    root = await mounted(url, options.mount_port)
    path = url.names if options.root is None else tuple(part for part in os.fsencode(options.root).split(b"/") if part)
    pool = Pool(_POOL)
    provider = make_provider(pool) if options.device else SoftIwarp(pool)
    relay = Relay(url.host, url.port, url.transport)
    there = await _there(url, relay, options)
    name = b"conformance-%d-%d" % (os.getpid(), time.time_ns() % 1_000_000_000)

    def target(handle: bytes) -> Target:
        account = pool.account(_SHARE)
        return Target(provider, account, there, handle, (*path, name), options.patience, url.transport,
                      options.seed, options.messages)  # fmt: skip

    place = target(root)
    try:
        try:
            inside = await directory_of(await place.exchanger(), root, name)
        except (Differs, ConnectionError, TimeoutError) as error:
            raise CannotAsk(f"{url}: no directory can be made there: {error}") from error
        answers = []
        for question, items in chosen(url.transport, options.only, device=options.device):
            relay.forget()
            begun = time.monotonic()
            differs = absent = ""
            try:
                differs = await put(question, target(inside))
            except Absent as why:
                absent = str(why)
            seconds = time.monotonic() - begun
            file = _capture(relay, question, differs, options.captures) if differs and options.captures else ""
            answers.append(Answer(question.__name__, items, differs, seconds, file, absent))
            told(answers[-1])
        try:
            await empty(await place.exchanger(), inside)
            await nfs3(await place.exchanger(), 13, opaque(root) + opaque(name))
        except (Differs, ConnectionError, TimeoutError) as error:
            # A question may have been too much for the server: what it has answered before stays true.
            left(f"{os.fsdecode(name)} is left in the export: {error}")
        return answers
    finally:
        await place.leave()
        await relay.close()
        await provider.close()


async def _there(url: Url, relay: Relay, options: Options) -> ListenAddress:
    """Where to connect. What goes through a device goes past the relay. Raises OSError."""
    if not options.device:
        await relay.open()
        return ListenAddress("127.0.0.1", relay.port)
    found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    return ListenAddress(str(found[0][4][0]), url.port)


def _capture(relay: Relay, question: Question, differs: str, directory: str) -> str:
    file = Path(directory) / f"{question.__name__}.pcapng"
    relay.save(file, f"{question.__name__}: {differs}")
    return str(file)


async def empty(to: Exchanger, directory: bytes) -> None:
    """Remove what is in a directory, and what is in directories there."""
    while True:
        found = entries(await good(to, 16, opaque(directory) + bytes(16) + (1000).to_bytes(4, "big"), "READDIR"))[1]
        names = [name for name, _ in found if name not in (b".", b"..")]
        if not names:
            return
        for name in names:
            there = opaque(directory) + opaque(name)
            if outcome(await nfs3(to, 12, there)) == "success":
                continue
            inside = await good(to, 3, there, "LOOKUP")
            await empty(to, inside[32 : 32 + int.from_bytes(inside[28:32], "big")])
            await good(to, 13, there, "RMDIR")
