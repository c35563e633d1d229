"""What became of each recalled delegation, and what waited for it, from the calls that passed.

Owns :class:`Story`; imports the calls and the declarations. All times are those of messages on the server's network:
what a client did before it sent a message, and the server behind one, is seen by what they sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from nfsd.protocol import nfs4 as p
from tests.vm.nfs4_calls import Exchange, passed

_FLUSHING = ("WRITE", "COMMIT", "LOCK", "OPEN")
"""What a client sends of a file before it returns its delegation (RFC 8881 section 10.4.4)."""
_CONFLICTING = ("OPEN", "REMOVE", "RENAME", "LINK", "SETATTR")
_OF_INTEREST = {*_FLUSHING, *_CONFLICTING, "DELEGRETURN"}
_UNDER_DELEGATIONS = (p.open_claim_type4.CLAIM_DELEGATE_CUR, p.open_claim_type4.CLAIM_DELEG_CUR_FH)
_BY_HANDLE = (p.open_claim_type4.CLAIM_FH, p.open_claim_type4.CLAIM_DELEG_CUR_FH, p.open_claim_type4.CLAIM_PREVIOUS)


@dataclass(eq=False, slots=True)
class Delegation:
    """A delegation that was given, recalled or returned."""

    client: str
    handle: bytes
    granted: int = 0
    """When the OPEN's reply passed."""
    write: bool = False
    recalls: list[Exchange] = field(default_factory=list)
    returned: Exchange | None = None
    in_flight: list[Exchange] = field(default_factory=list)
    """What other clients waited for when it was first recalled."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Milliseconds that one conflicting operation waited for one delegation, and what for."""

    operation: str
    write: bool
    flushed: bool
    delayed: int
    """How often it was answered DELAY."""
    whole: float
    """From its arrival to its answer, the last if it was sent again."""
    to_recall: float
    """From its arrival to the CB_RECALL that it caused."""
    round_trip: float
    """From CB_RECALL to its answer."""
    to_return: float
    """From CB_RECALL to DELEGRETURN's arrival."""
    flushing: float
    """Of that, from the first to the last call about the file in between."""
    returning: float
    """From DELEGRETURN's arrival to its answer."""
    waking: float
    """From that to the answer of what waited."""


class Story:
    """All delegations of a capture."""

    def __init__(self) -> None:
        self.delegations: dict[bytes, Delegation] = {}
        self.calls = 0
        self._names: dict[tuple[bytes, bytes], bytes] = {}
        """Handles by directory and name, as far as replies have told them."""
        self._flying: dict[Exchange, None] = {}
        self._about: dict[Exchange, list[tuple[str, bytes]]] = {}
        self._again: dict[object, list[Exchange]] = {}
        """What asks for the same thing, in order."""
        self._flushes: dict[tuple[str, bytes], list[Exchange]] = {}
        self._claims: dict[str, list[Exchange]] = {}
        """What each client sent of state that it had under delegations."""

    @classmethod
    def read(cls, file: BinaryIO, server: str) -> Story:
        """The story that a capture tells. Raises FormatError."""
        return cls.of(passed(file, server))

    @classmethod
    def of(cls, passing: Iterable[tuple[bool, Exchange]]) -> Story:
        """The story of calls, each when it passed and, with True, again when its answer did."""
        self = cls()
        for answered, exchange in passing:
            if exchange.callback:
                if not answered:
                    self._callback(exchange)
            elif answered:
                self._reply(exchange)
            else:
                self._call(exchange)
        return self

    # -- taking what passes --------------------------------------------------------------------------------------------
    def _delegation(self, stateid: p.stateid4, client: str, handle: bytes) -> Delegation:
        found = self.delegations.get(stateid.other)
        if found is None:
            found = self.delegations[stateid.other] = Delegation(client, handle)
        return found

    def _callback(self, exchange: Exchange) -> None:
        arguments = exchange.first("CB_RECALL")
        if arguments is None:
            return
        found = self._delegation(arguments.stateid, exchange.client, arguments.fh)
        if not found.recalls:
            found.in_flight = [one for one in self._flying if one.client != exchange.client]
        found.recalls.append(exchange)

    def _call(self, exchange: Exchange) -> None:
        self.calls += 1
        about = [one for one in self._targets(exchange.operations) if one[0] in _OF_INTEREST]
        if not any(name in _OF_INTEREST for name, _ in exchange.operations):
            return
        self._about[exchange] = about
        self._flying[exchange] = None
        if any(name in _CONFLICTING for name, _ in exchange.operations):
            self._again.setdefault(_question(exchange), []).append(exchange)
        if exchange.first("LOCK") is not None or _claims(exchange.first("OPEN")):
            self._claims.setdefault(exchange.client, []).append(exchange)
        for name, handle in about:
            if name in _FLUSHING:
                self._flushes.setdefault((exchange.client, handle), []).append(exchange)
            if name == "DELEGRETURN":
                stateid = exchange.first("DELEGRETURN").deleg_stateid
                found = self._delegation(stateid, exchange.client, handle)
                found.returned = found.returned or exchange

    def _targets(self, operations: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, bytes]]:
        """What operations are about, and the handles of that, as far as they are known."""
        current = saved = b""
        for name, arguments in operations:
            target = current
            if name == "PUTFH":
                current = arguments.object
            elif name == "SAVEFH":
                saved = current
            elif name == "RESTOREFH":
                current = saved
            elif name == "LOOKUP":
                current = self._names.get((current, arguments.objname), b"")
            elif name == "OPEN":
                if arguments.claim.claim not in _BY_HANDLE:
                    current = target = self._names.get((current, _name_opened(arguments)), b"")
            elif name == "REMOVE":
                target = self._names.get((current, arguments.target), b"")
            elif name == "LINK":
                target = saved
            elif name == "RENAME":
                if over := self._names.get((current, arguments.newname)):
                    yield name, over
                target = self._names.get((saved, arguments.oldname), b"")
            if target:
                yield name, target

    def _reply(self, exchange: Exchange) -> None:
        self._flying.pop(exchange, None)
        current = saved = b""
        named: tuple[bytes, bytes] | None = None
        for (name, arguments), (_, result) in zip(exchange.operations, exchange.results, strict=False):
            if getattr(result, "status", 0):
                return
            if name == "PUTFH":
                current = arguments.object
            elif name == "SAVEFH":
                saved = current
            elif name == "RESTOREFH":
                current = saved
            elif name == "REMOVE":
                self._names.pop((current, arguments.target), None)
            elif name == "RENAME":
                moved = self._names.pop((saved, arguments.oldname), None)
                self._names.pop((current, arguments.newname), None)
                if moved is not None:
                    self._names[current, arguments.newname] = moved
            elif name == "LOOKUP":
                named = current, arguments.objname
            elif name == "OPEN" and arguments.claim.claim not in _BY_HANDLE:
                named = current, _name_opened(arguments)
            elif name == "GETFH" and named is not None:
                current = self._names[named] = result.resok4.object
                named = None
        self._opened(exchange)
        exchange.results.clear()

    def _opened(self, exchange: Exchange) -> None:
        """Take the delegation that an OPEN gave."""
        for (name, _), (_, result) in zip(exchange.operations, exchange.results, strict=False):
            if name != "OPEN" or result.resok4 is None:
                continue
            handle = next(
                (found.resok4.object for one, found in exchange.results if one == "GETFH" and found.resok4), b""
            )
            if not handle and (putfh := exchange.first("PUTFH")) is not None:
                handle = putfh.object
            self._about[exchange].append(("OPEN", handle))
            given = result.resok4.delegation
            if (held := given.read or given.write) is not None:
                found = self._delegation(held.stateid, exchange.client, handle)
                found.granted = found.granted or exchange.replied
                found.write = given.write is not None

    def calls_before_return(self, delegation: Delegation, since: int) -> list[Exchange]:
        """What its holder sent about the file from then on until it returned the delegation."""
        back = delegation.returned
        sent = self._flushes.get((delegation.client, delegation.handle), ())
        return [one for one in sent if back is not None and since <= one.called <= back.called and one.replied]

    def claims_before_return(self, delegation: Delegation, since: int) -> list[Exchange]:
        """Locks, and opens by delegations, that its holder sent from then on until it returned the delegation."""
        back, sent = delegation.returned, self._claims.get(delegation.client, ())
        return [one for one in sent if back is not None and since <= one.called <= back.called]

    # -- what waited ---------------------------------------------------------------------------------------------------
    def waits(self) -> Iterator[Wait]:
        """Every operation that waited for exactly one delegation, which came back."""
        causes: dict[Exchange, list[Delegation]] = {}
        for delegation in self.delegations.values():
            if (cause := self._cause(delegation)) is not None:
                causes.setdefault(cause, []).append(delegation)
        for cause, delegations in causes.items():
            if len(delegations) == 1:
                yield self._wait(cause, delegations[0])

    def _cause(self, delegation: Delegation) -> Exchange | None:
        """What a delegation was recalled for: the latest call of another client that could not go on before."""
        back = delegation.returned
        if not delegation.recalls or back is None or not back.replied or not delegation.recalls[0].replied:
            return None
        wanting = [
            one
            for one in delegation.in_flight
            if one.replied
            and any(name in _CONFLICTING and handle == delegation.handle for name, handle in self._about[one])
        ]
        return max(wanting, key=lambda one: one.called, default=None)

    def _wait(self, cause: Exchange, delegation: Delegation) -> Wait:
        recall, back = delegation.recalls[0], delegation.returned
        assert back is not None
        asked = self._again[_question(cause)]
        turns = asked[asked.index(cause) :]
        last = next((one for one in turns if one.status != p.NFS4ERR_DELAY), cause)
        flushes = self.calls_before_return(delegation, recall.called)
        begun = min((one.called for one in flushes), default=0)
        ended = max((one.replied for one in flushes), default=0)
        operation = next(name for name, handle in self._about[cause] if handle == delegation.handle)
        return Wait(
            operation,
            delegation.write,
            bool(flushes),
            turns.index(last),
            _ms(cause.called, last.replied),
            _ms(cause.called, recall.called),
            _ms(recall.called, recall.replied),
            _ms(recall.called, back.called),
            _ms(begun, ended),
            _ms(back.called, back.replied),
            _ms(back.replied, last.replied),
        )


def _ms(begin: int, end: int) -> float:
    return (end - begin) / 1e6


def _claims(arguments: p.OPEN4args | None) -> bool:
    """Whether an OPEN is of a file that a delegation has opened already."""
    return arguments is not None and arguments.claim.claim in _UNDER_DELEGATIONS


def _name_opened(arguments: p.OPEN4args) -> bytes:
    info = arguments.claim.delegate_cur_info
    return bytes(info.file if info is not None else arguments.claim.file or b"")


def _question(exchange: Exchange) -> object:
    """What a call asks for: the same when it is sent again behind DELAY."""
    return exchange.client, tuple(
        (name, repr(arguments.claim) if name == "OPEN" else repr(arguments))
        for name, arguments in exchange.operations
        if name in ("PUTFH", "SAVEFH", *_CONFLICTING)
    )
