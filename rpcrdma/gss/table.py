"""The contexts of all clients, bounded, in equal shares. Owns :class:`Table`; imports contexts, and networks.

Operation: a context is on its host's account (an IPv4 address, or a /64), and on those of the networks that the host is
in. When one host has its bound of contexts, it loses one that it has not used lately. When there are too many in all,
the largest network does that has most, in that the smaller one that has most, and so on: whoever has many addresses
gets no more by them. A client that has lost a context makes another one (RFC 2203 section 5.3.3.3), so nothing but time
is lost. That takes the same time however many hosts there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from rpcrdma.gss.contexts import Context
from rpcrdma.networks import Part, Tree

_BETWEEN_LOOKS: Final = 60.0


class _Host(Part[Any]):
    """What a host has."""

    __slots__ = ("contexts",)

    def __init__(self, key: str, parent: Part[Any]) -> None:
        super().__init__(key, parent)
        self.contexts: OrderedDict[bytes, Context] = OrderedDict()


class Table:
    """Contexts by handle, and by host."""

    def __init__(self, most: int, most_of_host: int) -> None:
        self.most, self.most_of_host = most, most_of_host
        self.evicted = self.expired = 0
        self._look = 0.0
        self.by_handle: dict[bytes, Context] = {}
        """For reading elsewhere; always this very dict."""
        self._hosts: dict[str, _Host] = {}
        self._networks: Tree[Part[Any]] = Tree(Part, 1, 1, 1)

    def __len__(self) -> int:
        return len(self.by_handle)

    def __iter__(self) -> Iterator[Context]:
        return iter(list(self.by_handle.values()))

    def find(self, handle: bytes) -> Context | None:
        """The context that a client calls so."""
        return self.by_handle.get(handle)

    def of(self, host: str) -> int:
        """How many contexts a host has."""
        found = self._hosts.get(host)
        return 0 if found is None else len(found.contexts)

    def add(self, context: Context) -> None:
        """Have one more; another one may give way."""
        host = self._hosts.get(context.host)
        if host is not None and len(host.contexts) >= self.most_of_host:
            self._evict(host)
        elif len(self.by_handle) >= self.most:
            self._evict(self._fullest())
        host = self._hosts.get(context.host)  # it may have lost its only one
        if host is None:
            host = self._hosts[context.host] = _Host(context.host, self._networks.of(context.host))
        self.by_handle[context.handle] = host.contexts[context.handle] = context
        host.grow()
        host.find()

    def remove(self, context: Context) -> None:
        """It was destroyed, or has expired."""
        if self.by_handle.pop(context.handle, None) is None:
            return
        context.gone = True
        host = self._hosts[context.host]
        del host.contexts[context.handle]
        host.shrink()
        if not host.contexts:
            host.hide()
            del self._hosts[context.host]

    def expire(self, now: float) -> None:
        """Remove those whose time is over. Looks at them about once a minute, however often it is called."""
        if now < self._look:
            return
        self._look = now + _BETWEEN_LOOKS
        for context in [context for context in self.by_handle.values() if context.expires <= now]:
            self.expired += 1
            self.remove(context)

    def _fullest(self) -> _Host:
        """The host that has most, in the network that has most."""
        part: Part[Any] = self._networks.everybody
        while not isinstance(part, _Host):
            part = part.fullest()
        return part

    def _evict(self, host: _Host) -> None:
        """Remove the one of a host's that has not been used for longest, more or less: a second chance for each."""
        mine = host.contexts
        for _ in range(len(mine)):
            oldest = next(iter(mine.values()))
            if not oldest.recent:
                break
            oldest.recent = False
            mine.move_to_end(oldest.handle)
        self.evicted += 1
        self.remove(next(iter(mine.values())))
