"""A disk with a volatile write cache that can lose its power: an NBD server for one qemu.

Why: killing qemu loses what the guest had not yet sent to its disk, but everything it had sent survives in the host's
page cache, flushed or not. A real disk keeps recent writes in its cache until it is told to flush, and loses any part
of them, in no order, with its power. So here a write stays in memory until a FLUSH (or its own FUA bit) comes;
``power_cut`` keeps the durable part and, of the rest, a random selection of 4 KiB pieces, as torn and reordered as a
disk may leave it. A server that acknowledges before it has flushed is caught.

Protocol: NBD, fixed newstyle, the options GO and EXPORT_NAME, simple replies (the NBD project's protocol document).
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from pathlib import Path

_MAGIC = b"NBDMAGIC"
_OPTION_MAGIC = b"IHAVEOPT"
_OPTION_REPLY_MAGIC = 0x3E889045565A9
_REQUEST_MAGIC = 0x25609513
_REPLY_MAGIC = 0x67446698
_FIXED_NEWSTYLE, _NO_ZEROES = 1, 2
_OPT_EXPORT_NAME, _OPT_ABORT, _OPT_GO = 1, 2, 7
_REP_ACK, _REP_INFO, _REP_ERR_UNSUP = 1, 3, (1 << 31) + 1
_HAS_FLAGS, _SEND_FLUSH, _SEND_FUA = 1, 4, 8
_READ, _WRITE, _DISCONNECT, _FLUSH = 0, 1, 2, 3
_FUA = 1
_EINVAL = 22
_PIECE = 4096
_LARGEST = 32 << 20


class VolatileDisk:
    """A raw image ``path`` of ``size`` octets, made sparse when it is missing. ``uri`` is what qemu opens."""

    def __init__(self, path: Path, size: int, socket_path: Path) -> None:
        self.size = size
        self.flushes = 0
        self._lock = threading.Lock()
        self._cache: dict[int, bytes] = {}
        """Pieces written since the last flush, by piece number."""
        self._powered = True
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, size)
        socket_path.unlink(missing_ok=True)
        self.uri = f"nbd+unix:///?socket={socket_path}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(socket_path))
        self._listener.listen(4)
        threading.Thread(target=self._accept, daemon=True, name="volatile disk").start()

    def power_cut(self, seed: int) -> tuple[int, int]:
        """Lose the power; what is in ``path`` afterwards is what the platters hold. Returns (kept, lost) cached
        pieces."""
        rng = random.Random(seed)
        with self._lock:
            self._powered = False
            kept = [number for number in self._cache if rng.random() < 0.5]
            lost = len(self._cache) - len(kept)
            for number in kept:
                os.pwrite(self._file, self._cache[number], number * _PIECE)
            self._cache.clear()
        self.close()
        return len(kept), lost

    def close(self) -> None:
        """Stop serving. What is cached is lost."""
        self._powered = False
        self._listener.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _accept(self) -> None:
        while self._powered:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True, name="volatile disk").start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as stream:
            try:
                if self._negotiate(peer, stream):
                    while self._request(peer, stream):
                        pass
            except (OSError, EOFError, struct.error):
                pass

    @staticmethod
    def _exactly(stream: object, count: int) -> bytes:
        data: bytes = stream.read(count)  # type: ignore[attr-defined]
        if len(data) != count:
            raise EOFError
        return data

    def _negotiate(self, peer: socket.socket, stream: object) -> bool:
        peer.sendall(_MAGIC + _OPTION_MAGIC + struct.pack(">H", _FIXED_NEWSTYLE | _NO_ZEROES))
        (flags,) = struct.unpack(">I", self._exactly(stream, 4))
        transmission = _HAS_FLAGS | _SEND_FLUSH | _SEND_FUA
        while True:
            magic, option, length = struct.unpack(">8sII", self._exactly(stream, 16))
            if magic != _OPTION_MAGIC or length > 65536:
                return False
            self._exactly(stream, length)

            def reply(kind: int, data: bytes = b"", option: int = option) -> None:
                peer.sendall(struct.pack(">QIII", _OPTION_REPLY_MAGIC, option, kind, len(data)) + data)

            if option == _OPT_EXPORT_NAME:
                peer.sendall(struct.pack(">QH", self.size, transmission) + (b"" if flags & _NO_ZEROES else bytes(124)))
                return True
            if option == _OPT_GO:
                reply(_REP_INFO, struct.pack(">HQH", 0, self.size, transmission))
                reply(_REP_ACK)
                return True
            if option == _OPT_ABORT:
                reply(_REP_ACK)
                return False
            reply(_REP_ERR_UNSUP)

    def _request(self, peer: socket.socket, stream: object) -> bool:
        magic, flags, kind, cookie, offset, length = struct.unpack(">IHHQQI", self._exactly(stream, 28))
        if magic != _REQUEST_MAGIC or kind == _DISCONNECT:
            return False
        error, answer = 0, b""
        payload = self._exactly(stream, length) if kind == _WRITE and length <= _LARGEST else b""
        if kind in (_READ, _WRITE) and (offset + length > self.size or length > _LARGEST):
            error = _EINVAL
        elif kind == _READ:
            answer = self._read(offset, length)
        elif kind == _WRITE:
            self._write(offset, payload, durable=bool(flags & _FUA))
        elif kind == _FLUSH:
            self._flush()
        else:
            error = _EINVAL
        with self._lock:
            if not self._powered:
                return False
            peer.sendall(struct.pack(">IIQ", _REPLY_MAGIC, error, cookie) + answer)
        return True

    def _piece(self, number: int) -> bytes:
        cached = self._cache.get(number)
        return cached if cached is not None else os.pread(self._file, _PIECE, number * _PIECE)

    def _read(self, offset: int, length: int) -> bytes:
        with self._lock:
            first, last = offset // _PIECE, (offset + length - 1) // _PIECE
            data = b"".join(self._piece(number) for number in range(first, last + 1))
        start = offset - first * _PIECE
        return data[start : start + length]

    def _write(self, offset: int, data: bytes, *, durable: bool) -> None:
        with self._lock:
            if not self._powered:
                return
            done = 0
            while done < len(data):
                number, within = divmod(offset + done, _PIECE)
                part = data[done : done + _PIECE - within]
                old = b"" if len(part) == _PIECE else self._piece(number)
                whole = part if not old else old[:within] + part + old[within + len(part) :]
                if durable:
                    os.pwrite(self._file, whole, number * _PIECE)
                    self._cache.pop(number, None)
                else:
                    self._cache[number] = whole
                done += len(part)

    def _flush(self) -> None:
        with self._lock:
            if not self._powered:
                return
            self.flushes += 1
            for number, piece in self._cache.items():
                os.pwrite(self._file, piece, number * _PIECE)
            self._cache.clear()
