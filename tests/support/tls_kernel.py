"""A kernel that enciphers, played by threads, where the real one has no TLS: what is sent on the socket goes to a
thread, which makes records of it and sends them to the peer."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import termios
import threading

from rpcrdma.tls.secrets import Secret
from tests.support.tls import DATA, HANDSHAKE, KEY_UPDATE, Forged


class StandIn:
    """In the place of :class:`rpcrdma.tls.kernel.Kernel`."""

    def __init__(self, *, rekeys: bool = True) -> None:
        self.rekeys = rekeys
        self.taken: list[Link] = []

    def take(self, sock: socket.socket, secret: Secret) -> Link:
        """Encipher what a connection sends."""
        self.taken.append(Link(sock, secret, self.rekeys))
        return self.taken[-1]


class Link:
    """In the place of :class:`rpcrdma.tls.kernel.Transmitter`."""

    def __init__(self, sock: socket.socket, secret: Secret, rekeys: bool) -> None:
        self.rekeys, self.octets, self.refused = rekeys, 0, 0
        self._keys, self._lock = Forged(secret), threading.Lock()
        self._peer = sock.dup()
        self._peer.setblocking(True)
        near, self._far = socket.socketpair()
        near.setblocking(False)
        os.dup2(near.fileno(), sock.fileno(), inheritable=False)
        near.close()
        for target in (self._encipher, self._hand_on):
            threading.Thread(target=target, daemon=True).start()

    def send(self, kind: int, content: bytes) -> bool:
        """A record of another kind, once the thread has sent all data before it."""
        waits = array.array("i", [0])
        with self._lock:
            fcntl.ioctl(self._far, termios.FIONREAD, waits)
            if waits[0]:
                self.refused += 1
                return False
            with contextlib.suppress(OSError):
                self._peer.sendall(self._keys.seal(kind, content))
        return True

    def update(self) -> bool:
        """New keys, and the record that says so."""
        if not self.send(HANDSHAKE, KEY_UPDATE + b"\0"):
            return False
        with self._lock:
            self._keys.update()
        return True

    def _encipher(self) -> None:
        with contextlib.suppress(OSError):
            while self._far.recv(1, socket.MSG_PEEK):
                with self._lock:
                    octets = self._far.recv(16384)
                    self.octets += len(octets)
                    self._peer.sendall(self._keys.seal(DATA, octets))
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_WR)

    def _hand_on(self) -> None:
        with contextlib.suppress(OSError):
            while octets := self._peer.recv(65536):
                self._far.sendall(octets)
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_WR)
