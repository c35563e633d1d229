"""The calls that a server is measured with: NFSv3 calls (RFC 1813) and COMPOUNDs (RFC 7530, RFC 8881), as Linux sends
them.

Owns :class:`Files`, the files and the user of the calls, and a function for each kind of call; imports
:mod:`bench.nfs4`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.fixtures import BLOCK, COLD_SIZE, HALF, MANY, NAMES, RENAMED, SIZED, TAR
from bench.nfs4 import Session
from nfsd.protocol.nfs3 import NFS_PROGRAM, diropargs3, nfs_fh3
from rpcrdma.xdr import pack

FILE_SIZE = 64 << 20
DATA = random.randbytes(1 << 20)
"""What is written."""
MOST_DATA = 64 << 20
"""Octets of data in all the calls of a scenario."""
OPENERS = 16
"""Files that are opened and closed at the same time."""
OFFSETS = 1024
"""Different calls of a scenario; they are sent in turn."""
COLD_READS = 1 << 18
"""READs of what is not cached, each of another place."""
TARRED = 3000
"""Files of an archive; :func:`untar3` makes a few more, as many for each of 16 slots."""
TARRED_SIZE = 4096
_HANDLE_AT = 24 + 4 + 4
"""Of CREATE's handle in a reply, with its length: behind RPC's header, the status, and that there is one."""


@dataclass(frozen=True, slots=True)
class Page:
    """A call of READDIRPLUS in the middle of a directory."""

    cookie: int
    verifier: bytes
    entries: int
    """In its reply."""


@dataclass(frozen=True, slots=True)
class Files:
    """What is served, and the caller."""

    root: nfs_fh3
    data: nfs_fh3
    uid: int = 0
    session: Session | None = None
    """For calls of NFSv4: a handle is the same in both versions."""
    more: Mapping[str, nfs_fh3] = field(default_factory=dict)
    """What else is in the root, by name."""
    pages: Sequence[Page] = ()
    """Of the directory of many names."""

    @property
    def nfs4(self) -> Session:
        """The session, which the scenario asked for."""
        assert self.session is not None
        return self.session


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls ready to be sent."""

    calls: Sequence[bytes]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the load generator."""
    things: float = 1.0
    """What is counted, in one call: entries of a directory, or the part of a file that it is."""


def rpc(files: Files, procedure: int, arguments: bytes) -> bytes:
    """A call of NFSv3; its XID is zero."""
    credential = struct.pack(">II4sIII", 0, 4, b"load", files.uid, files.uid, 0)
    head = struct.pack(">8I", 0, 0, 2, NFS_PROGRAM, 3, procedure, 1, len(credential))
    return head + credential + bytes(8) + arguments


def handle(files: Files, name: str = "") -> bytes:
    """The argument that stands first in most calls: the file of data, or another one."""
    return pack(nfs_fh3, files.more[name] if name else files.data)


def names(files: Files, directory: str, form: bytes, number: int = 0) -> list[bytes]:
    """Arguments: that many names (0: as many as other calls) in a directory (``""``: the root)."""
    where = files.more[directory] if directory else files.root
    return [pack(diropargs3, diropargs3(where, form % each)) for each in range(number or OFFSETS)]


def offsets(size: int) -> list[int]:
    """Random multiples of ``size`` in the file."""
    return [random.randrange(FILE_SIZE // size) * size for _ in range(OFFSETS)]


def attributes(mode: int | None = None, size: int | None = None) -> bytes:
    """A sattr3."""
    with_mode = struct.pack(">I", 0) if mode is None else struct.pack(">II", 1, mode)
    with_size = struct.pack(">I", 0) if size is None else struct.pack(">IQ", 1, size)
    return with_mode + bytes(8) + with_size + bytes(8)


def getattr3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 1, handle(files))]


def lookup3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 3, pack(nfs_fh3, files.root) + struct.pack(">I4s", 4, b"data"))]


def access3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 4, handle(files) + struct.pack(">I", 0x3F))]


def read_of(files: Files, name: str, places: Sequence[int], size: int) -> list[bytes]:
    """READs of these places in a file."""
    where = handle(files, name)
    return [rpc(files, 6, where + struct.pack(">QI", at, size)) for at in places]


def read3(files: Files, size: int) -> list[bytes]:
    return read_of(files, "", offsets(size), size)


def read_half3(files: Files, size: int) -> list[bytes]:
    """READs of what is cached in a file of which every other block is not."""
    blocks = [random.randrange(FILE_SIZE // BLOCK // 2) * 2 * BLOCK for _ in range(OFFSETS)]
    return read_of(files, HALF, [block + random.randrange(BLOCK // size) * size for block in blocks], size)


def read_cold3(files: Files, size: int) -> list[bytes]:
    """READs of what is not cached: no place twice."""
    places = random.sample(range(COLD_SIZE // size), COLD_READS)
    return read_of(files, "cold", [place * size for place in places], size)


def writes_to(files: Files, places: Sequence[int], size: int) -> list[bytes]:
    """Unstable WRITEs to these places in the file of data."""
    tails = [struct.pack(">QIII", at, size, 0, size) + DATA[:size] for at in places]
    return [rpc(files, 7, handle(files) + tail) for tail in tails]


def write3(files: Files, size: int) -> list[bytes]:
    return writes_to(files, offsets(size)[: MOST_DATA // size], size)


def write_on3(files: Files, size: int) -> list[bytes]:
    """Each WRITE goes on where the one before it ends."""
    return writes_to(files, range(0, OFFSETS * size, size), size)


def names3(files: Files, size: int) -> Calls:
    """CREATE of a file, LOOKUP, REMOVE: one after the other, with many files at the same time."""
    places = names(files, "", b"file %04d")
    making = struct.pack(">I", 0) + attributes(mode=0o644)
    calls = [
        call
        for place in places
        for call in (rpc(files, 8, place + making), rpc(files, 3, place), rpc(files, 12, place))
    ]
    return Calls(calls, {"chain": 3})


def mkdir3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 9, place + attributes(mode=0o755)) for place in names(files, NAMES, b"d %04d")]


def rmdir3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 13, place) for place in names(files, NAMES, b"d %04d")]


def symlink3(files: Files, size: int) -> list[bytes]:
    tail = attributes(mode=0o777) + struct.pack(">I12s", 12, b"where/to/go.")
    return [rpc(files, 10, place + tail) for place in names(files, NAMES, b"s %04d")]


def unsymlink3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 12, place) for place in names(files, NAMES, b"s %04d")]


def link3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 15, handle(files) + place) for place in names(files, NAMES, b"l %04d")]


def unlink3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 12, place) for place in names(files, NAMES, b"l %04d")]


def rename3(files: Files, size: int) -> list[bytes]:
    """There."""
    both = zip(names(files, NAMES, RENAMED), names(files, NAMES, b"t %04d"), strict=True)
    return [rpc(files, 14, one + other) for one, other in both]


def rename_back3(files: Files, size: int) -> list[bytes]:
    both = zip(names(files, NAMES, RENAMED), names(files, NAMES, b"t %04d"), strict=True)
    return [rpc(files, 14, other + one) for one, other in both]


def resize3(files: Files, size: int) -> list[bytes]:
    """SETATTR of the size, each time another."""
    sizes = [random.randrange(size) for _ in range(OFFSETS)]
    return [rpc(files, 2, handle(files, SIZED) + attributes(size=each) + bytes(4)) for each in sizes]


def readdirplus3(files: Files, size: int) -> Calls:
    """A directory of many names, page by page, from its beginning to its end."""
    where = handle(files, MANY)
    pages = [where + struct.pack(">Q8sII", page.cookie, page.verifier, size, size) for page in files.pages]
    entries = sum(page.entries for page in files.pages)
    return Calls([rpc(files, 17, page) for page in pages], things=entries / len(pages))


def untar3(files: Files, size: int) -> Calls:
    """What unpacking an archive asks for: CREATE, WRITE, COMMIT, SETATTR of each of many files."""
    lacking = b"\xa5" * len(files.data.data)  # a handle of the same length, which CREATE's reply gives
    where = pack(nfs_fh3, nfs_fh3(lacking))
    place = len(rpc(files, 0, b""))
    write = struct.pack(">QIII", 0, TARRED_SIZE, 0, TARRED_SIZE) + DATA[:TARRED_SIZE]
    # Mode and the archive's time, as tar sets them.
    closing = struct.pack(">II", 1, 0o640) + bytes(12) + struct.pack(">6I", 2, 10**9, 0, 2, 10**9, 0) + bytes(4)
    after = [rpc(files, 7, where + write), rpc(files, 21, where + bytes(12)), rpc(files, 2, where + closing)]
    making = struct.pack(">I", 0) + attributes(mode=0o600)
    calls = [call for each in tarred(files) for call in (rpc(files, 8, each + making), *after)]
    return Calls(calls, {"chain": 4, "pairs": (_HANDLE_AT, place), "given": len(where)}, things=1 / 4)


def remove3(files: Files, size: int) -> list[bytes]:
    """Those files."""
    return [rpc(files, 12, place) for place in tarred(files)]


def tarred(files: Files) -> list[bytes]:
    """Arguments: the archive's files."""
    return names(files, TAR, b"file %06d", -(-TARRED // OPENERS) * OPENERS)


def getattr4(files: Files, size: int) -> list[bytes]:
    return [files.nfs4.getattr()]


def lookup4(files: Files, size: int) -> list[bytes]:
    return [files.nfs4.lookup()]


def access4(files: Files, size: int) -> list[bytes]:
    return [files.nfs4.access()]


def open4(files: Files, size: int) -> list[bytes]:
    """The same open owner's open of the same file, again and again."""
    return [files.nfs4.open()]


def open_close4(files: Files, size: int) -> Calls:
    """OPEN and CLOSE in turn, of as many files as there are calls outstanding."""
    calls, options = files.nfs4.opens_and_closes(OPENERS)
    return Calls(calls, options)


def open_delegated4(files: Files, size: int) -> Calls:
    """OPEN and CLOSE of a file, which is delegated, and the return of the delegation, of as many files."""
    calls, options = files.nfs4.opens_delegated(OPENERS)
    return Calls(calls, options)


def create4(files: Files, size: int) -> Calls:
    """OPEN that creates, and CLOSE, of ever other names."""
    calls, options = files.nfs4.creations([b"new %04d" % number for number in range(OFFSETS)])
    return Calls(calls, options)


def uncreate3(files: Files, size: int) -> list[bytes]:
    return [rpc(files, 12, place) for place in names(files, "", b"new %04d")]


def read4(files: Files, size: int) -> list[bytes]:
    return [files.nfs4.read(at, size) for at in offsets(size)]


def write4(files: Files, size: int) -> list[bytes]:
    """Unstable WRITEs."""
    return [files.nfs4.write(at, DATA[:size]) for at in offsets(size)[: MOST_DATA // size]]
