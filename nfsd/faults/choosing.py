"""Decides what is done to which call.

Owns :class:`Faults`, which is the planner of the server's dispatchers; imports rules, calls and acts. Each rule counts
the calls that it is for, and has random numbers of its own, so what it does depends on the seed and on those calls
alone. Rules act together on a call; where two say different things, the first one counts.

A call that is sent again gets what it got before, if that was another call's execution or result. Otherwise the reply
cache or a session's slot would answer a call that the client has not made.
"""

from __future__ import annotations

import ipaddress
import random
import time
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol
from weakref import WeakKeyDictionary

from nfsd.exports import canonical_address
from nfsd.faults.calls import Asked, read
from nfsd.faults.rules import OF_RDMA, Rule, Rules, version_of
from nfsd.protocol.nfs3 import nfsstat3
from nfsd.protocol.nfs4 import nfsstat4
from rpcrdma.engine.spoiling import Spoiling
from rpcrdma.faults.plan import Message, Plan
from rpcrdma.log_limits import limited_logger
from rpcrdma.rpc.messages import accept_stat
from rpcrdma.rpc.program import Transport
from rpcrdma.rpc.refusals import accepted
from rpcrdma.wire.header import Fault

_log = limited_logger(__name__)

_REMEMBERED = 1024
"""Calls whose retransmissions are known again."""
_COMPARED = 512
"""Octets of a call that are compared with those of its retransmission."""
_FAULTS = {"ERR_CHUNK": Fault.HEADER, "ERR_VERS": Fault.VERSION}


class Acts(Protocol):
    """What is done to the server itself (:mod:`nfsd.faults.acts`)."""

    def expire(self, address: str) -> int:
        """The leases of all clients at an address are over."""

    def new_owner(self) -> None:
        """The server is another."""

    def new_verifier(self) -> None:
        """Unstable data may have been lost."""


class _Use:
    """A rule in use: how often it was for a call, and has acted."""

    def __init__(self, rule: Rule, seed: int, clock: Callable[[], float]) -> None:
        self.rule = rule
        self.matched = self.acted = 0
        self._clock = clock
        self._random = random.Random(f"{seed} {rule.name}")
        self._transports = rule.transports if set(OF_RDMA).isdisjoint(rule.actions) else ("rdma",)
        self._networks = [ipaddress.ip_network(one, strict=False) for one in rule.clients or ()]
        self._connections: WeakKeyDictionary[Transport, int] = WeakKeyDictionary()
        self._next_connection = 1
        self._until: float | None = None

    def is_for_address(self, address: str) -> bool:
        """Whether it is for a client."""
        if not self._networks:
            return True
        where = ipaddress.ip_address(canonical_address(address))
        return any(where in network for network in self._networks)

    def is_for_connection(self, transport: Transport) -> bool:
        """Whether it is for a connection whose number is not known yet."""
        wanted = self._transports
        if wanted is not None and transport.netid.rstrip("6") not in wanted:
            return False
        return not self.rule.callback and self.is_for_address(transport.peer_address)

    def has_number(self, transport: Transport) -> bool:
        """Whether the connection has one of the numbers; it has the next one if it is new."""
        if self.rule.connections is None:
            return True
        number = self._connections.get(transport)
        if number is None:
            number = self._connections[transport] = self._next_connection
            self._next_connection += 1
        return number in self.rule.connections

    def is_for_program(self, call: Asked) -> bool:
        """Whether it is for the program and the version of a call."""
        versions = self.rule.versions
        return call.program in self.rule.programs and (versions is None or not call.version_names.isdisjoint(versions))

    def target(self, call: Asked, exports: Callable[[Asked], set[str]]) -> int | None:
        """Which operation of a call it is for, 0 of other calls; None: it is for none."""
        rule = self.rule
        if rule.error is not None and (call.version != version_of(rule.error) or not call.name or call.name == "NULL"):
            return None
        if rule.leave_out is not None and call.version != 4:
            return None
        index: int | None = 0
        if rule.calls is not None and call.name not in rule.calls:
            index = next((at for at, one in enumerate(call.operations) if one.name in rule.calls), None)
        if index is None or (rule.exports is not None and exports(call).isdisjoint(rule.exports)):
            return None
        return index

    def acts(self) -> bool:
        """Count a call that it is for; whether it acts on it."""
        rule = self.rule
        self.matched += 1
        after = self.matched - rule.skip - 1
        if after < 0 or after % rule.every or (rule.times is not None and self.acted >= rule.times):
            return False
        if rule.probability < 1 and self._random.random() >= rule.probability:
            return False
        if rule.seconds is not None:
            now = self._clock()
            self._until = now + rule.seconds if self._until is None else self._until
            if now > self._until:
                return False
        self.acted += 1
        return True


class Faults:
    """The rules that there are now, and what they have done."""

    def __init__(self, rules: Rules, file: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.done: Counter[tuple[str, str]] = Counter()
        """By rule and action."""
        self.changed: list[Callable[[], None]] = []
        """Called when there are other rules."""
        self.acts: Acts | None = None
        """None: there is no server yet."""
        self.export_names: Callable[[Asked], set[str]] = lambda call: set()
        self._clock = clock
        self._again: OrderedDict[tuple[str, int, int], list[tuple[Rule, int]]] = OrderedDict()
        self.replace(rules, file)

    def replace(self, rules: Rules, file: str = "") -> None:
        """These are the rules from now on; what the others have counted is forgotten."""
        self.rules, self.file = rules, file
        self.uses = [_Use(rule, rules.seed, self._clock) for rule in rules.rules]
        self._again.clear()
        for changed in self.changed:
            changed()
        _log.warning("FAULTS: %s", self)

    def __str__(self) -> str:
        count = len(self.uses)
        if not count:
            return "none now; this server was started to misbehave on demand"
        return f"this server misbehaves on purpose: {count} rules of {self.file}, seed {self.rules.seed}"

    # What the dispatchers ask

    def concerns(self, transport: Transport) -> bool:
        """Whether anything may be done to calls of a connection."""
        return any(use.is_for_connection(transport) for use in self.uses)

    def plan(self, transport: Transport, message: Message) -> Plan | None:
        """What is done to a call that has just come; None: nothing."""
        call = read(message)
        if call is None:
            return None
        key = transport.peer_address, call.xid, zlib.crc32(message[0][:_COMPARED])
        before = self._again.get(key)
        chosen: list[tuple[Rule, int]] = []
        for use in self.uses:
            if not use.is_for_connection(transport) or not use.is_for_program(call) or not use.has_number(transport):
                continue
            index = use.target(call, self.export_names)
            if index is None:
                continue
            if before is not None and _is_lasting(use.rule):
                continue
            if use.acts():
                chosen.append((use.rule, index))
        if before is None:
            self._remember(key, [one for one in chosen if _is_lasting(one[0])])
        else:
            chosen += before
        return self._planned(transport, call, chosen) if chosen else None

    def _remember(self, key: tuple[str, int, int], lasting: list[tuple[Rule, int]]) -> None:
        self._again[key] = lasting
        if len(self._again) > _REMEMBERED:
            self._again.popitem(last=False)

    def _planned(self, transport: Transport, call: Asked, chosen: Sequence[tuple[Rule, int]]) -> Plan:
        plan, spoiling = Plan(), Spoiling()
        for rule, index in chosen:
            self._act(rule, transport)
            for action in rule.actions:
                self.done[rule.name, action] += 1
                _log.warning("FAULT %s: %s: %s", rule.name, action, _told(transport, call, rule, index, action))
            for field in ("delay", "delay_reply", "overtaken_by", "drop", "disconnect"):
                value = getattr(rule, field)
                if value is not None and not getattr(plan, field):
                    plan = replace(plan, **{field: value})
            if _is_lasting(rule):
                plan = _executed_otherwise(plan, call, rule, index)
            spoiling = _spoilt(spoiling, rule)
        if spoiling.error is not None and plan.answer is None:
            # Composed like any other, then replaced by the error.
            plan = replace(plan, answer=accepted(call.xid, accept_stat.SYSTEM_ERR))
        return plan if spoiling == Spoiling() else replace(plan, spoiling=spoiling)

    def _act(self, rule: Rule, transport: Transport) -> None:
        """Do what is not done to the call itself."""
        if self.acts is None:
            return
        if rule.expire:
            self.acts.expire(transport.peer_address)
        if rule.new_owner:
            self.acts.new_owner()
        if rule.new_verifier:
            self.acts.new_verifier()

    # What callbacks ask

    def callback(self, addresses: set[str], names: Sequence[str]) -> str:
        """What is done to a callback with these operations: ``unsent``, ``unheard``, or empty for nothing."""
        for use in self.uses:
            rule = use.rule
            if rule.callback is None or not any(map(use.is_for_address, addresses)):
                continue
            if (rule.calls is None or not set(rule.calls).isdisjoint(names)) and use.acts():
                self.done[rule.name, "callback"] += 1
                _log.warning("FAULT %s: callback: %s to %s is %s", rule.name, "+".join(names), addresses, rule.callback)
                return rule.callback
        return ""


def _is_lasting(rule: Rule) -> bool:
    """Whether a call that is sent again must meet the same."""
    return rule.error is not None or rule.read_at_most is not None or rule.leave_out is not None


def _executed_otherwise(plan: Plan, call: Asked, rule: Rule, index: int) -> Plan:
    """The plan with a failure, a shorter READ, or fewer attributes."""
    if plan.answer is not None or plan.message is not None:
        return plan
    if rule.error is not None:
        error = nfsstat3[rule.error] if call.version == 3 else nfsstat4[rule.error]
        made = call.failed(error, index)
        if isinstance(made, tuple):
            return replace(plan, message=made[0], amend=made[1])
        return replace(plan, answer=made)
    if rule.leave_out is not None:
        return replace(plan, message=call.leaving_out(rule.leave_out))
    assert rule.read_at_most is not None
    return replace(plan, message=call.reading_at_most(index, rule.read_at_most))


def _spoilt(spoiling: Spoiling, rule: Rule) -> Spoiling:
    if rule.credits is not None and spoiling.credit_value is None:
        spoiling = spoiling._replace(credit_value=rule.credits)
    if rule.refuse is not None and spoiling.error is None:
        spoiling = spoiling._replace(error=_FAULTS[rule.refuse])
    if rule.invalidate is not None and not spoiling.invalidate:
        spoiling = spoiling._replace(invalidate=rule.invalidate)
    return spoiling


def _told(transport: Transport, call: Asked, rule: Rule, index: int, action: str) -> str:
    """A call and what is done to it, for the log."""
    name = call.operations[index].name if call.operations and rule.calls else call.name or "a call"
    value = getattr(rule, action)
    what = "" if value is True else f", {' '.join(value) if isinstance(value, tuple) else value}"
    return f"{transport.netid} {transport.peer_address} port {transport.peer_port} xid {call.xid:#010x} {name}{what}"
