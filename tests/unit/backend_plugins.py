"""Backends for the tests of backends."""

import threading
from errno import EIO, ENOENT

from nfsd.backends.memory import MemoryBackend
from nfsd.backends.simple import FileType, New, Place, SimpleBackend, Status, error


class Threaded(MemoryBackend):
    """A store in memory that is called as one that may wait, and gives its entries no cookies."""

    at_once = False
    threads = 3

    def names(self, directory):
        here = self._directory(directory)
        return [Place(name, number.to_bytes(8, "big")) for name, (number, _) in here.entries.items()]

    def names_after(self, directory, cookie, most):
        return None

    def read_into(self, key, offset, sink):
        return SimpleBackend.read_into(self, key, offset, sink)

    def read(self, key, offset, size):
        return bytes(self._file(key).data[offset : offset + size])


class Forgetful(MemoryBackend):
    """The last octet of what is read is another one."""

    def read_into(self, key, offset, sink):
        octets = super().read_into(key, offset, sink)
        if octets:
            sink[octets - 1] ^= 1
        return octets


class Repeating(MemoryBackend):
    """Names are told twice where a listing goes on."""

    def names_after(self, directory, cookie, most):
        return super().names_after(directory, max(0, cookie - 1), most) if most > 1 and cookie % 64 else []


class Unlinking(MemoryBackend):
    """What is removed is gone at once."""

    def remove(self, directory, name):
        key = self.lookup(directory, name)
        super().remove(directory, name)
        if self.status(key).nlink == 0:
            super().forget(key)

    def forget(self, key):
        pass


_lasting: dict[str, "Lasting"] = {}


class Lasting(MemoryBackend):
    """A store whose files and keys outlast the server, where it is given a name."""

    def __new__(cls, *, lasting="", **_):
        return _lasting.setdefault(lasting, super().__new__(cls)) if lasting else super().__new__(cls)

    def __init__(self, *, lasting="", names=0):
        if not hasattr(self, "_files"):
            super().__init__()
            self.identity = lasting.encode()
        if names:
            many = self.make(self.root(), b"many", New(FileType.DIR, 0o755), 0, 0)
            for number in range(names):
                self.make(many, b"n%05d" % number, New(FileType.REG, 0o644), 0, 0)


class Faulty(SimpleBackend):
    """What is read raises what no plug-in should raise, hangs, or is fine."""

    threads = 2
    released = threading.Event()

    def __init__(self, **options):
        super().__init__(**options)
        Faulty.released.clear()

    def root(self):
        return b"/"

    def status(self, key):
        if key == b"/":
            return Status(FileType.DIR, 1, 0o755, 2)
        return Status(FileType.REG, 1 + len(key), 0o644, size=4)

    def lookup(self, directory, name):
        if name not in (b"raises", b"hangs", b"good", b"lies"):
            raise error(ENOENT)
        return name

    def names(self, directory):
        strange = [Place(name, b"good") for name in (b"", b".", b"..", b"../up", b"a\0b", b"x" * 256)]
        return [*strange, Place(b"good", b"good")]

    def read(self, key, offset, size):
        if key == b"raises":
            raise KeyError("a mistake")
        if key == b"hangs":
            Faulty.released.wait(60)
        if key == b"lies":
            return b"x" * (size + 1)
        return b"good"[offset : offset + size]


def failing(**options):
    raise RuntimeError("no store today")


def hanging():
    Faulty.released.wait(60)
    return MemoryBackend()


class Mumbling(MemoryBackend):
    """What extended attributes say is another thing than what they were told."""

    def get_xattr(self, key, name):
        return super().get_xattr(key, name)[:-1]


class Shared(MemoryBackend):
    """Others change it too."""

    shared = True


class Losing(MemoryBackend):
    """What is written is lost as long as this says so."""

    lost = False

    def sync(self, key):
        if Losing.lost:
            raise error(EIO)
