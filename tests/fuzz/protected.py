"""Target ``protected``: calls of NFSv3 with krb5, krb5i and krb5p, answered natively and as general calls.

Two servers with the same files and the same security contexts, which Kerberos' own library has made with a KDC, get the
same octets. One answers calls where they arrive (``rpcrdma/rpc/signed``, ``ciphering``, ``callers``), the
other one as general calls (``rpcrdma/rpc/secured``). An input is a few calls on one connection, whose sequence numbers,
credentials, verifiers and protected bodies are damaged, repeated, reflected, and protected otherwise than they say.

What must hold
    Each call has the outcome that :mod:`tests.fuzz.gss_model` predicts from RFC 2203, of both servers, and the same
    results. A reply is signed, and protected as the call was. What nobody has signed gets no data, and writes none.
    Both servers count the same. Their sequence windows are those of the model afterwards. All memory is given back,
    also where the client hangs up while threads work for it. The sanitizer watches the native code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from nfsd.protocol.nfs3 import NFS_PROGRAM
from nfsd.v3.procedures import Nfs3Procedures
from nfsd.v3.program import nfs3_procedures
from rpcrdma.gss import contexts
from rpcrdma.gss.acceptor import Acceptor
from rpcrdma.gss.contexts import SEQUENCE_WINDOW, Context
from rpcrdma.gss.identities import Answer
from rpcrdma.gss.identity import Identity
from rpcrdma.memory import Pool
from rpcrdma.rpc.dispatch import Dispatcher
from rpcrdma.rpc.gss_messages import DESTROY
from rpcrdma.rpc.program import Program
from rpcrdma.server.tcp import TcpListener
from tests.fuzz.gss_model import Wanted, behind_verifier, expected, opened
from tests.fuzz.iwarp_fakes import Errors
from tests.fuzz.nfs3_calls import READ, WRITE, Input, opaque
from tests.fuzz.protected_calls import ENCTYPES, LONG, Call, Key, Model, written
from tests.support.general_calls import GeneralCalls
from tests.unit import vfs_support
from tests.unit.gss_support import outcome, realm

MOST_CALLS = 5
PATIENCE = 60
ALICE = Identity(os.getuid(), os.getgid(), (os.getgid(),))
WORDS = {1: "krb5", 2: "krb5i", 3: "krb5p"}
MARK = 0xFFFFFFFF
"""The XID of a call that asks what has come before it."""
SHORTEST_DATA = 100
"""Octets of a reply that may have data."""


def record(message: bytes) -> bytes:
    return struct.pack(">I", 0x80000000 | len(message)) + message


class Side:
    """One of the two servers, and a connection to it."""

    def __init__(self, make: Callable[..., Dispatcher], service: Any, keytab: str) -> None:
        programs = [Program(NFS_PROGRAM, "nfs", {3: nfs3_procedures(service, service.exports)})]
        self.acceptor, self.pool = Acceptor({}.get, keytab=keytab), Pool(64 << 20)
        self.dispatcher = make(programs, natives={(NFS_PROGRAM, 3): Nfs3Procedures(service)}, gss=self.acceptor)
        self.listener = TcpListener(self.dispatcher, self.pool, asyncio.get_running_loop())
        self.listener.listen("127.0.0.1", 0)
        self.contexts: dict[bytes, Context] = {}
        self.ways: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def have(self, model: Model) -> None:
        """Have a context of a model's handle and keys."""
        with mock.patch.object(contexts, "new_handle", return_value=model.handle):
            context = Context(model.key.exported, "alice@EXAMPLE.ORG", "127.0.0.1", float("inf"))
        Answer(ALICE, float("inf")).tell(context)
        self.contexts[model.handle] = context
        self.acceptor.table.add(context)

    @property
    def busy(self) -> bool:
        return bool(self.dispatcher.held or self.dispatcher.running or self.dispatcher.securing)

    def counted(self) -> Counter[str]:
        """What it has counted so far."""
        assert self.dispatcher.secured is not None
        calls = sum(row.calls for row in self.dispatcher.rows.values())
        mine = {"refused": self.dispatcher.refused, "calls": calls, "replays": self.dispatcher.replay.hits}
        return Counter(self.acceptor.events() | self.dispatcher.secured.calls() | mine)

    def natively(self) -> int:
        """Calls answered natively so far."""
        return sum(row.native_calls for row in self.dispatcher.rows.values())

    async def call(self, message: bytes) -> bytes | None:
        """The reply; empty: there is none; None: the connection is closed."""
        if self.ways is None:
            self.ways = await asyncio.open_connection(*self.listener.address)
        reader, writer = self.ways
        writer.write(record(message))
        replies = []
        try:
            for _ in range(2):
                writer.write(record(struct.pack(">10I", MARK, 0, 2, NFS_PROGRAM, 3, 0, 0, 0, 0, 0)))
                while (reply := await self.reply(reader))[:4] != struct.pack(">I", MARK):
                    replies.append(reply)
                await self.until(lambda: not self.busy)
        except (EOFError, ConnectionError):
            self.hang_up()
            return None
        assert len(replies) < 2
        return replies[0] if replies else b""

    async def send_and_leave(self, message: bytes, turns: int) -> None:
        """Send a call, and hang up after so many turns of the loop."""
        if self.ways is None:
            self.ways = await asyncio.open_connection(*self.listener.address)
        self.ways[1].write(record(message))
        for _ in range(turns):
            await asyncio.sleep(0)
        self.hang_up()

    async def reply(self, reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(PATIENCE):
            mark = int.from_bytes(await reader.readexactly(4), "big")
            return await reader.readexactly(mark & 0x7FFFFFFF)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110 (anything in the process may change it)
                await asyncio.sleep(0)

    def hang_up(self) -> None:
        if self.ways is not None:
            self.ways[1].transport.abort()
            self.ways = None

    async def leave(self) -> None:
        """End the connection, and see that nothing is left."""
        self.hang_up()
        await self.until(lambda: not self.busy and not self.listener.connections and not self.pool.in_use)
        assert self.pool.leaked == 0
        for context in self.contexts.values():
            self.acceptor.table.remove(context)
        self.contexts.clear()


class Target:
    """Both servers, and the files behind them."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()
        self.errors = Errors()
        logging.getLogger().addHandler(self.errors)
        self.loop = asyncio.new_event_loop()
        self.stack = contextlib.ExitStack()
        directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.path = Path(self.stack.enter_context(vfs_support.directory_on("memory", "")))
        self.state = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.xid = 0
        with self.without_sanitizer(), realm(directory) as made:
            keytab = str(made.directory / "keytab")
            self.keys = [Key(keytab, made.preferring(enctype)) for enctype in ENCTYPES]
            self.loop.run_until_complete(self.start(keytab))

    @staticmethod
    @contextlib.contextmanager
    def without_sanitizer() -> Iterator[None]:
        """For the KDC's programs."""
        with mock.patch.dict(os.environ):
            os.environ.pop("LD_PRELOAD", None)
            yield

    async def start(self, keytab: str) -> None:
        sec = ("krb5", "krb5i", "krb5p", "sys")
        self.serving = vfs_support.serving(self.path, self.state, sec=sec)
        self.service, root = await self.serving.__aenter__()
        self.data = bytes(index * 3 + (index >> 8) & 0xFF for index in range(70_000))
        large = await vfs_support.write_file(self.service, root, b"large", self.data, mode=0o666)
        own = await vfs_support.write_file(self.service, root, b"written", bytes(LONG), mode=0o666)
        self.large, self.own = large.handle, own.handle
        os.utime(self.path / "large", (2_000_000_000, 1_600_000_000))
        self.sides = [Side(make, self.service, keytab) for make in (Dispatcher, GeneralCalls)]

    def close(self) -> None:
        """Stop the servers and remove the files."""
        self.loop.run_until_complete(self.stop())
        self.loop.close()
        self.stack.close()
        logging.getLogger().removeHandler(self.errors)

    async def stop(self) -> None:
        for side in self.sides:
            side.listener.close()
            side.acceptor.close()
        await self.serving.__aexit__(None, None, None)

    def one(self, data: bytes) -> None:
        """Check one input. Raises AssertionError, or whatever the code under test should not have raised."""
        self.errors.records.clear()
        self.loop.run_until_complete(self.run(Input(data)))
        assert not self.errors.records, self.errors.records

    async def run(self, source: Input) -> None:
        models = [Model(os.urandom(16), key) for key in self.keys]
        self.known = {model.handle: model for model in models}
        self.done: set[tuple[Any, ...]] = set()
        for side in self.sides:
            for model in models:
                side.have(model)
        counted = [side.counted() for side in self.sides]
        complete = True
        for _ in range(MOST_CALLS):
            if source.over or not complete:
                break
            complete = await self.call(source, models)
        if complete:
            more = [side.counted() - before for side, before in zip(self.sides, counted, strict=True)]
            assert more[0] == more[1], more
            self.same_windows()
        for side in self.sides:
            await side.leave()

    async def call(self, source: Input, models: list[Model]) -> bool:
        """One call to both servers. False: the client has hung up, and nobody knows what has become of it."""
        call = Call(source, models)
        self.xid += not call.again
        data = written(call, self.xid)
        arguments = call.arguments(self.own if call.procedure == WRITE else self.large, data)
        message = call.message(self.xid, arguments)
        wanted = expected(message, self.known.get)
        if wanted.who is not None and wanted.who.procedure in (1, 2) and wanted.outcome == "AUTH_BADCRED":
            return True  # it may be a context that is being made
        if call.hangs_up:
            for side in self.sides:
                await side.send_and_leave(message, self.xid % 5)
            return False
        if wanted.context is not None:
            wanted.context.take(wanted.who.sequence)
        before = self.sides[0].natively()
        found = [await self.answer(side, call, message, wanted, data) for side in self.sides]
        assert found[0] == found[1], (found, wanted, message.hex())
        self.note(wanted, found[0][0], self.sides[0].natively() > before)
        if wanted.who is not None and wanted.who.procedure == DESTROY and wanted.outcome == "SUCCESS":
            del self.known[wanted.context.handle]
        return True

    async def answer(self, side: Side, call: Call, message: bytes, wanted: Wanted, data: bytes) -> tuple[str, bytes]:
        """What a server says to a call, and what it has found, as far as both must find the same."""
        before = self.content()
        reply = await side.call(message)
        if reply is None:
            return "closed", b""
        verdict = outcome(SimpleNamespace(head=reply)) if reply else "dropped"  # type: ignore[arg-type]
        assert wanted.arguments is not None or self.content() == before
        assert verdict == "SUCCESS" or len(reply) < SHORTEST_DATA
        garbage = wanted.arguments is not None and not call.whole and verdict == "GARBAGE_ARGS"
        assert verdict == wanted.outcome or garbage, (verdict, wanted, message.hex())
        if wanted.context is None or verdict.startswith("AUTH"):
            return verdict, b""
        behind_verifier(reply, wanted.who, wanted.context.key.client)
        if verdict != "SUCCESS" or wanted.arguments is None:
            return verdict, b""
        results = opened(reply, wanted.who, wanted.context.key.client)
        if call.procedure != WRITE:
            assert call.procedure != READ or not call.whole or results.endswith(opaque(self.data[7 : 7 + call.size]))
            return verdict, results
        assert not call.whole or self.content().startswith(data)
        return verdict, results[:4] + results[-16:]  # without attributes, whose times differ

    def content(self) -> bytes:
        """What has been written."""
        return (self.path / "written").read_bytes()

    def same_windows(self) -> None:
        """No sequence number has been taken but by calls that were signed (RFC 2203 section 5.3.3.1)."""
        for model in self.known.values():
            for number in range(max(model.highest - SEQUENCE_WINDOW - 1, 0), model.highest + 1):
                taken = [side.contexts[model.handle].admit(number) for side in self.sides]
                assert taken == [0 if model.fresh(number) else 1] * 2, (number, model.highest, taken)

    def note(self, wanted: Wanted, verdict: str, natively: bool) -> None:
        service = "" if wanted.who is None else f"{WORDS.get(wanted.who.service)} "
        self.reached[f"{service}{verdict}{' natively' if natively else ''}"] += 1
