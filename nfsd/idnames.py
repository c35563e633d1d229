"""Users and groups by name, as NFSv4 sends them: ``name@domain`` (RFC 8881 section 5.9, RFC 7530 section 5.9).

Owns :class:`IdNames`. Threads of its own ask the system's name service (nsswitch: files, LDAP, …). It remembers
answers for a while, and unknown names too. Imports nothing of the project. Used from one event loop.

It answers from memory at once. :meth:`IdNames.learn` asks for a name that is not in memory, and waits for the name
service, but not for ever. An answer past its time is still given while a fresh one is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import os
import pwd
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from rpcrdma.log_limits import limited_logger

_log = limited_logger(__name__)
_LIMIT: Final = 4096
"""Answers remembered; the one not asked for longest goes first."""
_THREADS: Final = 4
_DNS_PATIENCE: Final = 3.0
_NAME_LIMIT: Final = 256
"""Octets of a name; the system's own limit (LOGIN_NAME_MAX) is no larger."""
NOBODY: Final = b"nobody"
_NO_ID: Final = 0xFFFFFFFF
"""(uid_t)-1 and (gid_t)-1: no one's id, whatever a name service says. Python shows it as -1."""


class Question(NamedTuple):
    """What the name service is asked: the id of a name (octets), or the name of an id."""

    group: bool
    subject: bytes | int


Answer = int | bytes | None
"""An id or a name; None: there is none."""


def ask_the_system(question: Question) -> Answer:
    """Put a question to the name service (blocking). Raises OSError when it cannot tell."""
    subject = question.subject
    try:
        if isinstance(subject, bytes):
            text = os.fsdecode(subject)
            found = grp.getgrnam(text).gr_gid if question.group else pwd.getpwnam(text).pw_uid
            return found if 0 <= found < _NO_ID else None
        return os.fsencode(grp.getgrgid(subject).gr_name if question.group else pwd.getpwuid(subject).pw_name)
    except (KeyError, ValueError, OverflowError):
        return None


def default_domain() -> str:
    """The domain of this host's name (blocking: it may ask the DNS), as idmapd(8) has it."""
    return (socket.getfqdn().partition(".")[2] or "localdomain").lower()


class IdNames:
    """Ids to names and back. ``numeric`` output needs no name service; input may always be either."""

    def __init__(
        self,
        *,
        numeric: bool = True,
        domain: str = "localdomain",
        ask: Callable[[Question], Answer] = ask_the_system,
        clock: Callable[[], float] = time.monotonic,
        ttl: float = 600.0,
        unknown_ttl: float = 60.0,
        patience: float = 5.0,
    ) -> None:
        self.numeric = numeric
        self.domain = domain.lower().encode()
        self._ask_system, self._clock, self._patience = ask, clock, patience
        self._ttl, self._unknown_ttl = ttl, unknown_ttl
        self._answers: OrderedDict[Question, tuple[float, Answer]] = OrderedDict()
        self._running: dict[Question, asyncio.Task[None]] = {}
        self._threads: ThreadPoolExecutor | None = None

    # -- input ---------------------------------------------------------------------------------------------------
    def question(self, text: bytes, *, group: bool) -> int | Question | None:
        """What an owner string from a client means: an id, a question to be answered first, or nothing (BADOWNER)."""
        if text.isdigit():
            # A number as text is the id itself (RFC 8881 section 5.9); the largest means "leave it alone" to chown().
            return int(text) if len(text) <= 10 and int(text) < _NO_ID else None
        name, separator, domain = text.rpartition(b"@")
        if not separator or not name or len(name) > _NAME_LIMIT or b"\0" in name or domain.lower() != self.domain:
            return None
        return Question(group, name)

    # -- output --------------------------------------------------------------------------------------------------
    def owner(self, uid: int) -> bytes:
        """A user as clients are told."""
        return b"%d" % uid if self.numeric else self._shown(False, uid)

    def owner_group(self, gid: int) -> bytes:
        """A group as clients are told."""
        return b"%d" % gid if self.numeric else self._shown(True, gid)

    def _shown(self, group: bool, number: int) -> bytes:
        # Who has no name, or none that came in time, goes by number, which clients take as well.
        _, name = self.known(Question(group, number))
        return name + b"@" + self.domain if isinstance(name, bytes) and name else b"%d" % number

    async def learn_ids(self, uids: Iterable[int], gids: Iterable[int]) -> None:
        """See that these have their names in memory, if names are what clients are told. Never fails."""
        if self.numeric:
            return
        questions = [Question(False, uid) for uid in set(uids)] + [Question(True, gid) for gid in set(gids)]
        missing = [question for question in questions if not self.known(question)[0]]
        if missing:
            with contextlib.suppress(OSError):
                await self.learn(missing)

    # -- the memory ----------------------------------------------------------------------------------------------
    def known(self, question: Question) -> tuple[bool, Answer]:
        """Whether the answer is in memory, and what it is. Asks again in the background when it is old."""
        entry = self._answers.get(question)
        if entry is None:
            return False, None
        self._answers.move_to_end(question)
        if entry[0] <= self._clock() and len(self._running) < _LIMIT:
            self._start(question)
        return True, entry[1]

    async def learn(self, questions: Iterable[Question]) -> dict[Question, Answer]:
        """The answers to questions, from memory or from the name service; askers of the same question share it. Raises
        OSError(ETIMEDOUT) when the name service does not answer in time, which changes nothing in memory."""
        answers: dict[Question, Answer] = {}
        running = {}
        for question in questions:
            found, answer = self.known(question)
            if found:
                answers[question] = answer
            else:
                running[question] = self._start(question)
        if running:
            # A task of its own: the dispatcher's driver has none, and asyncio.wait leaves the questions running.
            _, late = await asyncio.ensure_future(asyncio.wait(set(running.values()), timeout=self._patience))
            if late:
                _log.warning("the name service takes longer than %.0f s", self._patience)
            for question in running:
                found, answer = self.known(question)
                if not found:
                    raise OSError(errno.ETIMEDOUT, "the name service does not answer")
                answers[question] = answer
        return answers

    def _start(self, question: Question) -> asyncio.Task[None]:
        task = self._running.get(question)
        if task is None:
            if len(self._running) >= _LIMIT:
                raise OSError(errno.ETIMEDOUT, "the name service has enough to do")
            task = self._running[question] = asyncio.ensure_future(self._answer(question))
        return task

    async def _answer(self, question: Question) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "idnames")
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._ask_system, question)
        except OSError as error:
            _log.warning("the name service fails: %s", error)
            return
        finally:
            del self._running[question]
        lifetime = self._unknown_ttl if answer is None else self._ttl
        self._answers[question] = (self._clock() + lifetime, answer)
        self._answers.move_to_end(question)
        if len(self._answers) > _LIMIT:
            self._answers.popitem(last=False)

    async def close(self) -> None:
        """Give up questions that are under way."""
        for task in list(self._running.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


async def id_names(domain: str | None, *, numeric: bool) -> IdNames:
    """Those of a domain; of this host's, which the DNS knows, if it is not named."""
    if domain is None:
        try:
            domain = await asyncio.wait_for(asyncio.to_thread(default_domain), _DNS_PATIENCE)
        except TimeoutError:
            domain = "localdomain"
            _log.warning("the DNS is silent: names of users end in @%s; nfs4: {domain: ...} sets another", domain)
    return IdNames(numeric=numeric, domain=domain)
