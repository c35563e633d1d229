"""From a received RPC message to its reply: header, caller, replay cache, procedure (RFC 5531 sections 7 to 9).

Owns :class:`Dispatcher`. Imports the rest of :mod:`rpcrdma.rpc` and the codec; knows no transport and no program.

Operation: :meth:`Dispatcher.dispatch` runs the procedure at once; most are over when it returns, and ``done`` has been
called in the same stack. Those that wait are counted as in flight until they end. A call whose procedure has a native
function is offered to it first (:mod:`rpcrdma.rpc.offers`), and executed by its handler if it is declined. Where there
is no handler the function is the procedure's one body: what it declines is malformed, and answered GARBAGE_ARGS.

Ownership: ``holds`` passes to the dispatcher, which releases it when the call is over. The reply passes to ``done``,
whose receiver releases it once it was sent.

Errors: what the peer did wrong is answered as the RFC says, or costs it the connection when there is nobody to answer.
What goes wrong in here is logged with the call's identity and answered SYSTEM_ERR; it never gets to the transport.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rpcrdma.callers import on_behalf_of
from rpcrdma.declined import Declined
from rpcrdma.firewall import contain
from rpcrdma.gss.acceptor import Acceptor
from rpcrdma.holds import Hold
from rpcrdma.log_limits import limited_logger
from rpcrdma.rpc import eager, replay
from rpcrdma.rpc.arrived import NO_REPLY as NO_REPLY
from rpcrdma.rpc.arrived import TAKEN, Arrived, Done, TurnedAway
from rpcrdma.rpc.call_header import CallHeader
from rpcrdma.rpc.credentials import CredentialReader
from rpcrdma.rpc.messages import accept_stat, auth_stat, msg_type, reject_stat, reply_stat
from rpcrdma.rpc.native import Gate, NativeCalls
from rpcrdma.rpc.native_program import NativeProgram, Waiting
from rpcrdma.rpc.offers import Offer, offers
from rpcrdma.rpc.program import (
    ENCODED,
    RPCSEC_GSS,
    Call,
    DropCall,
    GarbageArguments,
    Procedure,
    ProcedureUnavailable,
    Program,
    RpcCredential,
    RpcReply,
    Transport,
)
from rpcrdma.rpc.refusals import accepted, denied, starttls, to_flawed
from rpcrdma.rpc.secured import SecuredCalls, Step
from rpcrdma.rpc.tally import Counts, Latencies
from rpcrdma.xdr import Decoder, Encoder, XdrError

_log = limited_logger(__name__)

_REPLY = int(msg_type.REPLY)
_ACCEPTED = int(reply_stat.MSG_ACCEPTED)
_SUCCESS_HEADER: Final = struct.Struct(">6I")


class Row(Counts):
    """A procedure with its counters, resolved when the dispatcher is made."""

    __slots__ = ("label", "latencies", "native", "number", "procedure")

    def __init__(
        self, program: Program, version: int, number: int, procedure: Procedure, native: NativeProgram | None
    ) -> None:
        self.procedure = procedure
        self.native = native if native is not None and offers(native, number) else None
        """What its calls are offered to first."""
        if procedure.handler is None and self.native is None:
            raise ValueError(f"nothing answers {program.name} version {version} {procedure.name}")
        self.latencies = Latencies() if native is None else native.latencies
        """Of all procedures of its program's version; natively answered calls are in them at once."""
        self.number = (program.number, version, number)
        self.label = (program.name, version, procedure.name)


class Execution:
    """One call on its way through its procedure."""

    __slots__ = ("call", "dispatcher", "done", "entry", "offset", "row", "run", "started", "waiting")

    def __init__(
        self,
        dispatcher: Dispatcher,
        row: Row,
        call: Call,
        offset: int,
        done: Done,
        waiting: Awaitable[None] | None,
        started: float,
    ) -> None:
        """``offset``: where its arguments begin. ``waiting``: what the gate has to learn about the caller first."""
        self.dispatcher, self.row, self.call, self.done = dispatcher, row, call, done
        self.offset, self.waiting, self.started = offset, waiting, started
        self.entry: replay.Entry | None = None
        self.run: eager.Run | None = None

    def __str__(self) -> str:
        call, (program, version, procedure) = self.call, self.row.label
        return f"{describe(call.transport)} xid {call.xid:#010x} {program}v{version} {procedure}"

    def admitted(self, _: None, exception: BaseException | None) -> None:
        """The gate knows about the caller now."""
        if exception is None:
            self.dispatcher.proceed(self)
        else:
            self.over(None, exception)

    def waits(self) -> None:
        """The call is in flight, and will be offered to its native function again."""
        self.run = None
        self.dispatcher.running.add(self)

    def declined(self) -> None:
        """The native function has waited, and leaves the call to the others after all."""
        self.dispatcher.carry_out(self)

    def over(self, result: Any, exception: BaseException | None) -> None:
        """Make the reply of the outcome and hand it over."""
        call, row = self.call, self.row
        call.begun = None  # if nobody went on from there
        reply: RpcReply | None
        if exception is None:
            reply = self._success(result)
        else:
            call.results.truncate(0)
            reply = self._failure(exception)
        seconds = time.perf_counter() - self.started
        row.calls += 1
        row.seconds += seconds
        row.latencies.observe(row.number[2] if call.shown < 0 else call.shown, seconds)
        tally = call.tally
        if tally is not None:
            tally.add(seconds, call.failed or exception is not None)
        running = self.dispatcher.running
        if self in running:
            running.discard(self)
            self.dispatcher.ended()
        if not isinstance(exception, asyncio.CancelledError):
            # Of a cancelled call they return when nobody refers to them: a worker may still be reading from them.
            _release(call.holds)
        entry = self.entry
        if entry is not None:
            cache = self.dispatcher.replay
            kept = exception is None and not call.forget
            if kept and reply is not None and reply.head[23] == accept_stat.SUCCESS:
                contain(None, cache.finish, entry, reply)
            else:
                contain(None, cache.abandon, entry, reply)
        contain(call.transport.close, self.done, reply)

    def _success(self, result: Any) -> RpcReply:
        if isinstance(result, RpcReply):
            return result  # a native function's
        call, procedure = self.call, self.row.procedure
        results = call.results
        if not procedure.raw and result is not ENCODED:
            try:
                results.encode(procedure.results, result)
            except Exception as error:
                results.truncate(0)
                _log.error("%s: the results cannot be encoded", self, exc_info=error)
                self.row.errors += 1
                return accepted(call.xid, accept_stat.SYSTEM_ERR)
        return RpcReply(call.xid, results.getbuffer(), results.payloads)

    def _failure(self, exception: BaseException) -> RpcReply | None:
        self.row.errors += 1
        if isinstance(exception, GarbageArguments):
            return accepted(self.call.xid, accept_stat.GARBAGE_ARGS)
        if isinstance(exception, ProcedureUnavailable):
            return accepted(self.call.xid, accept_stat.PROC_UNAVAIL)
        if isinstance(exception, TurnedAway):
            return denied(self.call.xid, reject_stat.AUTH_ERROR, auth_stat.AUTH_BADCRED)
        if isinstance(exception, DropCall):
            return NO_REPLY if exception.silently else None
        if isinstance(exception, asyncio.CancelledError):
            return None  # shutting down: the client asks again, the next server answers
        _log.error("%s failed", self, exc_info=exception)
        return accepted(self.call.xid, accept_stat.SYSTEM_ERR)


class Dispatcher:
    """The programs of this server, and the calls they are working on."""

    def __init__(
        self,
        programs: Iterable[Program],
        replay_cache: replay.ReplayCache | None = None,
        *,
        gate: Gate | None = None,
        natives: Mapping[tuple[int, int], NativeProgram] | None = None,
        gss: Acceptor | None = None,
    ) -> None:
        """``gate`` says whose calls are executed; anybody's without one. What it turns away is denied with AUTH_BADCRED
        before anything is done about it, as Linux's server does it. ``natives`` are native answers to the common
        procedures of a (program, version) in ``programs``. ``gss`` has the contexts of callers that use RPCSEC_GSS;
        without it they are denied. Raises ValueError for a procedure that nothing answers."""
        self.replay = replay.ReplayCache() if replay_cache is None else replay_cache
        self.running: set[Execution] = set()
        """Calls that are waiting for something."""
        self.securing: set[Step] = set()
        """Likewise, for their protection."""
        self.held: set[Waiting] = set()
        """Likewise, of the native path."""
        self.refused = 0
        """Calls that never reached a procedure: headers, credentials, programs, versions, procedures unknown here."""
        self._gate = gate
        self._natives = dict(natives or {})
        self._credentials = CredentialReader()
        self.gss = gss
        self.secured = None if gss is None else SecuredCalls(gss, self, gate)
        self._idle: asyncio.Future[None] | None = None
        self._versions: dict[int, dict[int, frozenset[int]]] = {}
        self.rows: dict[tuple[int, int, int], Row] = {}
        for program in programs:
            for version, procedures in program.versions.items():
                self._versions.setdefault(program.number, {})[version] = frozenset(procedures)
                native = self._natives.get((program.number, version))
                for number, procedure in procedures.items():
                    self.rows[program.number, version, number] = Row(program, version, number, procedure, native)
        self._unread = Declined()
        for (program_number, version), native in self._natives.items():
            for (number, of, procedure_number), row in self.rows.items():
                if (number, of) == (program_number, version):
                    native.declined.names[procedure_number] = row.label[2]
                    native.waited.names[procedure_number] = row.label[2]

    def native_calls(self, transport: Transport) -> NativeCalls | None:
        """What answers the common calls of a connection natively; None: nothing does."""
        if not self._natives:
            return None
        versions = [
            (number, version, program, [self.rows.get((number, version, procedure)) for procedure in range(64)])
            for (number, version), program in self._natives.items()
        ]
        read, known = self._credentials.read, None if self.secured is None else self.secured.known
        return NativeCalls(transport, self.replay, read, versions, self._gate, self._unread, self, known)

    def declined(self) -> Iterator[tuple[tuple[str, str, str], str, int]]:
        """What has not been answered natively: label, reason, count. In place of the procedure COMPOUND stands the
        operation that was not; what was declined before its header was read has an empty label."""
        for label, native in self._native():
            for name, reason, count in native.declined.counted():
                yield (*label, name), reason, count
        for _, reason, count in self._unread.counted():
            yield ("", "", ""), reason, count

    def waited(self) -> Iterator[tuple[tuple[str, str, str], str, int]]:
        """What was answered natively, but not at once: likewise."""
        for label, native in self._native():
            for name, reason, count in native.waited.counted():
                yield (*label, name), reason, count

    def _native(self) -> Iterator[tuple[tuple[str, str], NativeProgram]]:
        for (number, version), native in self._natives.items():
            program = next((row.label[0] for row in self.rows.values() if row.number[0] == number), str(number))
            yield (program, str(version)), native

    def versions(self, program: int, wanted: Iterable[int]) -> tuple[int, ...]:
        """Those of these versions of a program that are served."""
        return tuple(version for version in wanted if version in self._versions.get(program, ()))

    def admits(self, transport: Transport) -> bool:
        """Whether calls of this host are executed, as far as is known by now."""
        gate = self._gate
        return gate is None or (gate.learn(transport) is None and gate.admits(transport))

    def dispatch(
        self,
        transport: Transport,
        data: memoryview,
        chunks: Sequence[tuple[int, memoryview]],
        holds: list[Hold],
        done: Done,
        reply_room: int = 0,
    ) -> None:
        """Execute the call in ``data`` (the inline message, with ``chunks`` taken out at their positions in the
        unreduced one), and call ``done`` exactly once, perhaps before this returns. Raises nothing."""
        self.go_on(self._begin, Arrived(transport, data, chunks, holds, done, reply_room))

    def go_on(self, begin: Callable[..., Execution | RpcReply | None], arrived: Arrived, *arguments: Any) -> None:
        """Take a call further: ``begin(arrived, ...)`` gives its execution, or what there is to say instead."""
        try:
            begun = begin(arrived, *arguments)
        except Exception as error:
            _log.error("%s: a call is not executed", describe(arrived.transport), exc_info=error)
            begun = accepted(int.from_bytes(arrived.data[:4], "big"), accept_stat.SYSTEM_ERR)
        if isinstance(begun, Execution):
            self._execute(begun)
            return
        if begun is not TAKEN:
            _release(arrived.holds)
            contain(arrived.transport.close, arrived.done, begun)

    def carry_on(
        self, transport: Transport, data: memoryview, chunks: Sequence[tuple[int, memoryview]], hold: Hold
    ) -> None:
        """Execute a call whose connection has gone, for those who wait for its outcome on others."""
        self.dispatch(transport, data, chunks, [hold], lambda reply: None if reply is None else reply.release())

    def drop(
        self, transport: Transport, data: memoryview, chunks: Sequence[tuple[int, memoryview]], holds: list[Hold]
    ) -> None:
        """Let go of a call that has not been dispatched, and whose connection goes. One that has been begun natively
        may have to be executed all the same: its retransmission must find what came of it."""
        if any(type(hold) is replay.Passed and hold.wanted for hold in holds):
            self.dispatch(transport, data, chunks, holds, lambda reply: None if reply is None else reply.release())
        else:
            _release(holds)

    def _begin(self, arrived: Arrived) -> Execution | RpcReply | None:
        """The call, ready to be executed; or what there is to say instead: a reply, :data:`NO_REPLY`, None to close the
        connection, :data:`TAKEN` for nothing as yet."""
        header = CallHeader(arrived.data)
        if header.flaw:
            return self._refuse(to_flawed(header))
        arrived.xid, arrived.number = header.xid, header.number
        if header.flavor == RPCSEC_GSS and self.secured is not None:
            return self.secured.begin(arrived, header)
        credential = self._credentials.read(header.flavor, header.credential)
        if not isinstance(credential, RpcCredential):
            if header.asks_for_tls and arrived.transport.begin_tls():
                return starttls(header.xid)
            return self._refuse(denied(header.xid, reject_stat.AUTH_ERROR, credential))
        if not header.unverified:
            # RFC 5531 appendix A: the verifier that goes with AUTH_SYS is AUTH_NONE of length zero.
            return self._refuse(denied(header.xid, reject_stat.AUTH_ERROR, auth_stat.AUTH_BADVERF))
        return self.enter(arrived, credential, header.arguments)

    def enter(
        self, arrived: Arrived, credential: RpcCredential, offset: int, caller: int | None = None
    ) -> Execution | RpcReply | None:
        """A call whose caller is known, and whose arguments begin at ``offset`` of ``arrived.data``: as
        :meth:`_begin`. ``caller`` is a digest of who calls; None: of the credential as it stands in the header."""
        transport, data, chunks, xid = arrived.transport, arrived.data, arrived.chunks, arrived.xid
        program, version, procedure = arrived.number
        row = self.rows.get(arrived.number)
        if row is None:
            return self._refuse(self._unavailable(xid, program, version))
        if chunks and chunks[0][0] < offset:
            return self._refuse(accepted(xid, accept_stat.GARBAGE_ARGS))
        waiting = None
        gate = self._gate
        if gate is not None and procedure and not row.procedure.open:
            waiting = gate.learn(transport)
            if waiting is None and not gate.admits(transport):
                gate.turned_away(transport)
                return self._refuse(denied(xid, reject_stat.AUTH_ERROR, auth_stat.AUTH_BADCRED))
        results = Encoder()
        results.append(_SUCCESS_HEADER.pack(xid, _REPLY, _ACCEPTED, 0, 0, 0))
        arguments = Decoder(data, chunks, offset)
        call = Call(
            transport, xid, program, version, procedure, credential, arguments, results, arrived.holds, data, False,
            arrived.reply_room, None, -1, False, chunks,
        )  # fmt: skip
        passed = None
        for hold in arrived.holds:
            if type(hold) is replay.Passed:
                passed, call.begun = hold, hold.take_begun()
        execution = Execution(self, row, call, offset, arrived.done, waiting, time.perf_counter())
        if (guarded := row.procedure.replay) is True or (guarded and guarded(data[offset:])):
            key = replay.make_key(replay.Peer(transport), xid, row.number, data, offset, chunks, caller)
            known = self.replay.look_up(key)
            if known is not None:
                return known.recall()
            execution.entry = self.replay.begin(key, transport, passed)
            if execution.entry is None:
                joined = self.replay.join(key, transport, arrived.done)
                _release(arrived.holds if joined else [])
                return TAKEN if joined else NO_REPLY
        return execution

    def _execute(self, execution: Execution) -> None:
        if execution.waiting is None:
            self.proceed(execution)
        else:
            admission = self._admission(execution.waiting, execution.call.transport)
            self._run(execution, admission, execution.admitted)

    async def _admission(self, waiting: Awaitable[None], transport: Transport) -> None:
        """Wait until it is known who calls. Raises TurnedAway."""
        assert self._gate is not None
        await waiting
        if not self._gate.admits(transport):
            self._gate.turned_away(transport)
            raise TurnedAway

    def proceed(self, execution: Execution) -> None:
        """Have a call answered natively, or carry it out."""
        native = execution.row.native
        if native is not None and len(execution.call.chunks) <= execution.row.procedure.chunks:
            try:
                offer = Offer(native, execution, execution.offset)
            except Exception as error:
                execution.over(None, error)
                return
            if offer.begin():
                return
        self.carry_out(execution)

    def carry_out(self, execution: Execution) -> None:
        """Execute a call by its procedure's handler, if it has one."""
        try:
            coroutine = self._coroutine(execution)
        except Exception as error:
            execution.over(None, error)
            return
        self._run(execution, coroutine, execution.over)

    def _run(self, execution: Execution, coroutine: Coroutine[Any, Any, Any], outcome: eager.Outcome) -> None:
        run = on_behalf_of(execution.call.transport.peer_address, eager.start, coroutine, outcome)
        if run is not None:
            execution.run = run
            self.running.add(execution)

    def _coroutine(self, execution: Execution) -> Any:
        """What executes the call. Raises GarbageArguments."""
        call, procedure = execution.call, execution.row.procedure
        handler = procedure.handler
        if handler is None:
            raise GarbageArguments  # or its native function had not declined it
        if procedure.raw:
            return handler(call)
        try:
            value = call.arguments.decode(procedure.arguments)
            call.arguments.finish()
        except XdrError:
            raise GarbageArguments from None
        return handler(call, value)

    def _refuse(self, reply: RpcReply | None) -> RpcReply | None:
        self.refused += 1
        return reply

    def _unavailable(self, xid: int, program: int, version: int) -> RpcReply:
        versions = self._versions.get(program)
        if versions is None:
            return accepted(xid, accept_stat.PROG_UNAVAIL)
        if version not in versions:
            return accepted(xid, accept_stat.PROG_MISMATCH, min(versions), max(versions))
        return accepted(xid, accept_stat.PROC_UNAVAIL)

    def ended(self) -> None:
        """A call that had been waiting is over."""
        if self._idle is not None and not (self.running or self.securing or self.held or self._idle.done()):
            self._idle.set_result(None)

    def in_flight(self) -> list[str]:
        """One line per call that is waiting, the oldest first."""
        now = time.perf_counter()
        calls = [(execution.started, str(execution)) for execution in self.running]
        calls += [(waiting.since, str(waiting)) for waiting in self.held]
        calls += [(step.started, str(step)) for step in self.securing]
        return [f"{call}, for {now - started:.3f} s" for started, call in sorted(calls)]

    async def drain(self, timeout: float) -> int:  # noqa: ASYNC109 (what happens then is not a cancellation of this)
        """Wait until no call is in flight; cancel those that still are after ``timeout`` seconds. Returns how many."""
        if self.running or self.securing or self.held:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=timeout)
        for waiting in self.held:
            _log.warning("giving up %s", waiting)
        late: list[Execution | Step] = [*self.running, *self.securing]
        for execution in late:
            _log.warning("giving up %s", execution)
            if execution.run is not None:
                execution.run.cancel()
        return len(late) + len(self.held)


def _release(holds: list[Hold]) -> None:
    for lease in holds:
        lease.release()


def describe(transport: Transport) -> str:
    """The connection, for logs."""
    return f"{transport.netid} {transport.peer_address} port {transport.peer_port}"
