"""What connections are secured with: one server's certificates, its thread of handshakes, and threads that encipher.

Owns :class:`Tls`; imports :mod:`rpcrdma.tls`.
"""

from __future__ import annotations

import asyncio
import os
import socket

from rpcrdma.crew import Crew
from rpcrdma.tls.certificates import Certificates, Files
from rpcrdma.tls.counts import Counts
from rpcrdma.tls.handshake import Outcome
from rpcrdma.tls.handshakes import Handshakes
from rpcrdma.tls.library import load_ciphers
from rpcrdma.tls.secrets import KeyLog


class Tls:
    """TLS on all listeners of a server."""

    def __init__(self, files: Files, loop: asyncio.AbstractEventLoop) -> None:
        """Raises TlsError; OSError where there are no ciphers."""
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
        self.crew = Crew(len(os.sched_getaffinity(0)))
        self.crew.attach(loop)

    def begin(self, sock: socket.socket, host: str, outcome: Outcome) -> None:
        """Begin a handshake."""
        self._handshakes.begin(sock, host, self._wrap, outcome)

    def close(self) -> None:
        """End the threads; connections have been closed."""
        self._handshakes.close()
        self.crew.close()
