"""What connections are secured with: one server's certificates, its thread of handshakes, and threads that encipher.

Owns :class:`Tls`; imports :mod:`rpcrdma.tls`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

from rpcrdma.crew import Crew
from rpcrdma.tls.certificates import Certificates, Files
from rpcrdma.tls.counts import Counts
from rpcrdma.tls.handshake import Outcome
from rpcrdma.tls.handshakes import Handshakes
from rpcrdma.tls.kernel import Kernel, find_kernel
from rpcrdma.tls.library import load_ciphers
from rpcrdma.tls.secrets import KeyLog

_log = logging.getLogger(__name__)


class Tls:
    """TLS on all listeners of a server."""

    def __init__(self, files: Files, loop: asyncio.AbstractEventLoop, in_kernel: bool = True) -> None:
        """``in_kernel``: whether the kernel is to encipher what is sent, if it can. Raises TlsError; OSError where
        there are no ciphers."""
        load_ciphers()
        self.counts = Counts()
        log = KeyLog()
        try:
            certificates = Certificates(files, log.path, self.counts)
        except BaseException:
            log.close()
            raise
        self.believes, self._wrap = certificates.believes, certificates.wrap
        self._handshakes = Handshakes(log, certificates.look, self.counts)
        self.kernel = _kernel(in_kernel)
        self.crew = Crew(len(os.sched_getaffinity(0)))
        self.crew.attach(loop)

    def begin(self, sock: socket.socket, host: str, outcome: Outcome) -> None:
        """Begin a handshake."""
        self._handshakes.begin(sock, host, self._wrap, outcome)

    def close(self) -> None:
        """End the threads; connections have been closed."""
        self._handshakes.close()
        self.crew.close()


def _kernel(wanted: bool) -> Kernel | None:
    """What enciphers in our place; the log says whether it does."""
    why = "server.tls.kernel is never"
    if wanted:
        try:
            found = find_kernel()
        except OSError as error:
            why = error.strerror or str(error)
        else:
            _log.info("TLS: the kernel enciphers what is sent%s", "" if found.rekeys else ", and cannot change keys")
            return found
    _log.info("TLS: what is sent is enciphered in user space: %s", why)
    return None
