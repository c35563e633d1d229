"""Backends that break their promises, for the tests of what that costs."""

import threading
from errno import EIO

from nfsd.backends.keyed import KeyedStore
from nfsd.backends.memory import MemoryBackend
from nfsd.backends.simple import Place, error
from tests.unit.backend_plugins import Lasting, Threaded


class Generous(Lasting):
    """Gives more entries than it was asked for."""

    asked = 0

    def names_after(self, directory, cookie, most):
        Generous.asked += 1
        return super().names_after(directory, cookie, 1 << 30)


class Standing(Lasting):
    """Its listings begin again and again."""

    def names_after(self, directory, cookie, most):
        return super().names_after(directory, 0, most)


class Nameless(MemoryBackend):
    """Has entries without names where it stands."""

    def names_after(self, directory, cookie, most):
        return [Place(b"", directory, 9)]


class Counting(Lasting):
    """Counts how often all names are asked for."""

    asked = 0

    def names(self, directory):
        Counting.asked += 1
        return [one._replace(cookie=None) for one in super().names_after(directory, 0, 1 << 30)]

    def names_after(self, directory, cookie, most):
        return None


def boasting():
    """A store that says it has read more than was asked for."""
    store = KeyedStore(MemoryBackend())
    read = store.data.read

    async def longer(opened, offset, sink):
        size = len(sink)
        _, look = await read(opened, offset, sink)
        return size + 100_000, look

    store.data.read = longer
    return store


class Dull(MemoryBackend):
    """Cannot say what has become of a file whose name it has removed."""

    dull = False
    forgotten = 0

    def remove(self, directory, name):
        super().remove(directory, name)
        Dull.dull = True

    def status(self, key):
        if Dull.dull and key != self.root():
            Dull.dull = False
            raise error(EIO)
        return super().status(key)

    def forget(self, key):
        Dull.forgotten += 1


class Slow(Threaded):
    """Reads take until they are let go."""

    begun, gate = threading.Event(), threading.Event()
    told: list[str] = []

    def read(self, key, offset, size):
        Slow.begun.set()
        Slow.gate.wait(20)
        Slow.told.append("read")
        return b""

    def close(self):
        Slow.told.append("closed")
