"""TLS by the kernel: what a socket sends is enciphered on its way, from where it is.

Owns :class:`Kernel`, what this one can do of that, and :class:`Transmitter`, which has it encipher for one connection;
imports the secrets. Linux calls it an upper layer protocol of TCP, ``tls`` (its Documentation/networking/tls.rst).
Numbers are those of <linux/tls.h>.

Only what leaves is the kernel's. What comes is deciphered in user space, straight into its place, which the kernel
could not do better. And alerts and changes of keys are seen there where they stand between the data.

Records are numbered by the kernel: nothing else may encipher with its keys.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass
from typing import Final

from rpcrdma.tls.secrets import Secret

_TCP_ULP: Final = 31
_SOL_TLS: Final = 282
_TLS_TX: Final = 1
_SET_RECORD_TYPE: Final = 1
_TLS_1_3: Final = 0x0304
_CIPHERS: Final = {
    "TLS_AES_128_GCM_SHA256": 51,
    "TLS_AES_256_GCM_SHA384": 52,
    "TLS_CHACHA20_POLY1305_SHA256": 54,
}
_HANDSHAKE: Final = 22
_KEY_UPDATE: Final = b"\x18\0\0\1\0"
"""RFC 8446 section 4.6.3: new keys from here on, and none are asked for."""
_PATIENCE: Final = 1.0
"""Seconds for a connection with ourselves."""


class KeysStay(ConnectionError):
    """The peer wants new keys, and the kernel keeps those that it has."""

    def __init__(self) -> None:
        super().__init__("TLS: the peer wants new keys, and this kernel cannot change them (Linux 6.14 can)")


class Transmitter:
    """The kernel's end of one connection: it enciphers whatever is sent on a socket from now on."""

    def __init__(self, sock: socket.socket, secret: Secret, rekeys: bool) -> None:
        """``secret``: no record has been made with it. Raises OSError: the socket is as it was."""
        self._sock, self._secret = sock, secret
        self.rekeys = rekeys
        """Whether keys can be changed."""
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_ULP, b"tls")
        self.set_keys()

    def send(self, kind: int, content: bytes) -> bool:
        """Send a record of another kind than data, behind all that has been sent. False: the socket takes nothing now.
        Raises OSError."""
        about = [(_SOL_TLS, _SET_RECORD_TYPE, bytes([kind]))]
        try:
            self._sock.sendmsg([content], about, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        return True

    def update(self) -> bool:
        """Tell the peer of new keys, and go on with them. False: the socket takes nothing now. Raises OSError; then
        nothing may be sent any more."""
        if not self.send(_HANDSHAKE, _KEY_UPDATE):
            return False
        self._secret = self._secret.next()
        try:
            self.set_keys()
        except OSError:
            raise KeysStay from None
        return True

    def set_keys(self) -> None:
        """Have the kernel use the present ones. Raises OSError."""
        self._sock.setsockopt(_SOL_TLS, _TLS_TX, crypto_info(self._secret))


@dataclass(frozen=True, slots=True)
class Kernel:
    """One that enciphers."""

    rekeys: bool
    """Whether it can change keys, as Linux can from 6.14 on."""

    def take(self, sock: socket.socket, secret: Secret) -> Transmitter | None:
        """Have it encipher what a connection sends. None: it does not, for it has no such cipher, say."""
        try:
            return Transmitter(sock, secret, self.rekeys)
        except OSError:
            return None


def crypto_info(secret: Secret) -> bytes:
    """struct tls12_crypto_info_aes_gcm_128 and its like; the next record is the first."""
    key, iv = secret.keys()
    salt = b"" if "CHACHA20" in secret.cipher else iv[:4]
    return struct.pack("=HH", _TLS_1_3, _CIPHERS[secret.cipher]) + iv[len(salt) :] + key + salt + bytes(8)


def find_kernel() -> Kernel:
    """What this one can do, as a connection with ourselves shows. Raises OSError: it has no TLS; the text says why."""
    secret = Secret("TLS_AES_128_GCM_SHA256", bytes(32))
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), _PATIENCE) as sock,
    ):
        try:
            made = Transmitter(sock, secret, False)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise OSError(errno.ENOENT, "no module tls (modprobe tls)") from None
            raise
        try:
            made.set_keys()
        except OSError:
            return Kernel(False)
        return Kernel(True)
