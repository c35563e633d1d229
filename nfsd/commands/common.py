"""What the client's commands have in common: servers in use, what is said about errors, names for a terminal.

Owns :class:`Context` and :func:`run`; imports :mod:`nfsd.client`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import BinaryIO

import uvloop

from nfsd.client import FileSystem, NfsClientError, Options, Server, Url, UrlError
from nfsd.client.files import naming
from nfsd.client.url import parse
from nfsd.exit_status import INTERRUPTED, OUTPUT_GONE, TERMINATED
from rpcrdma.client import ClientOptions


class Usage(Exception):
    """The command line is wrong in a way that only its words show."""


class OutputGone(Exception):
    """Standard output was closed by who reads it."""


class Context:
    """One run of a command."""

    def __init__(self, command: str, options: Options, out: BinaryIO) -> None:
        self.command = command
        self.options = options
        self.failures = 0
        self._out = out
        self._servers: dict[tuple[str, str, int], Server] = {}
        self._exports: dict[tuple[str, str, int, tuple[bytes, ...]], tuple[FileSystem, str]] = {}
        self.now = time.time()
        self.terminal = out.isatty()

    async def locate(self, url: Url) -> tuple[FileSystem, str]:
        """The file system that a URL lies in and its path there. One connection for each server."""
        key = (url.transport, url.host, url.port)
        server = self._servers.get(key)
        if server is None:
            server = self._servers[key] = await Server.open(url, self.options)
        found = self._exports.get((*key, url.names))
        if found is None:
            with naming(url.path):
                found = self._exports[*key, url.names] = await server.locate(url.names)
        return found

    async def close(self) -> None:
        """Close every connection."""
        for server in self._servers.values():
            with contextlib.suppress(OSError, NfsClientError):
                await server.close()

    def complain(self, what: object, error: BaseException | str) -> None:
        """Say that something was not done, and go on."""
        self.failures += 1
        print(f"rdma-nfsd {self.command}: {printable(str(what))}: {reason(error)}", file=sys.stderr, flush=True)

    def write(self, text: str) -> None:
        """Put text, names among it, on standard output."""
        try:
            self._out.write(os.fsencode(text))
        except BrokenPipeError:
            raise OutputGone from None

    def flush(self) -> None:
        """Have everything written."""
        try:
            self._out.flush()
        except BrokenPipeError:
            raise OutputGone from None

    def shown(self, name: str) -> str:
        """A name as it may stand on the output: a terminal gets nothing that would control it, as with ls(1)."""
        return printable(name) if self.terminal else name


def printable(text: str) -> str:
    """Text with ``?`` for everything that is no printable character."""
    return "".join(c if c.isprintable() else "?" for c in text)


def reason(error: BaseException | str) -> str:
    """What went wrong, for people."""
    if isinstance(error, OSError):
        return printable(error.strerror or str(error) or type(error).__name__)
    return printable(str(error)) or type(error).__name__


def run(parsed: argparse.Namespace, work: Callable[[Context, argparse.Namespace], Awaitable[None]]) -> int:
    """Run a command; returns the exit status."""
    logging.basicConfig(
        level="DEBUG" if parsed.debug else "WARNING", format="rdma-nfsd: %(message)s", stream=sys.stderr, force=True
    )
    try:
        options = Options(
            nfs_version=parsed.nfs_version, rdma_version=parsed.rdma_version, provider=parsed.provider,
            mount_port=parsed.mount_port, patience=parsed.patience, tls_roots=parsed.tls_roots,
            tls_certificate=parsed.tls_certificate, tls_key=parsed.tls_key, security=parsed.sec,
            rpc=ClientOptions(reconnect=parsed.patience),
        )  # fmt: skip
    except ValueError as error:
        print(f"rdma-nfsd {parsed.command}: {error}", file=sys.stderr)
        return 2
    context = Context(parsed.command, options, sys.stdout.buffer)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(context, parsed, work))


async def _run(
    context: Context, parsed: argparse.Namespace, work: Callable[[Context, argparse.Namespace], Awaitable[None]]
) -> int:
    task = asyncio.current_task()
    assert task is not None
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        await work(context, parsed)
        context.flush()
    except (Usage, UrlError) as error:
        print(f"rdma-nfsd {context.command}: {error}", file=sys.stderr)
        print(f"rdma-nfsd {context.command} --help says more", file=sys.stderr)
        return 2
    except NfsClientError as error:
        print(f"rdma-nfsd {context.command}: {printable(str(error))}", file=sys.stderr)
        return 1
    except OutputGone:
        # What is buffered can go nowhere; without this the interpreter tries once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_GONE
    except OSError as error:
        what = f"{printable(str(error.filename))}: " if error.filename else ""
        print(f"rdma-nfsd {context.command}: {what}{reason(error)}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        # Everything is cleaned up by now. A thread may hang in a read that nobody can cancel: it is not waited for.
        await context.close()
        os._exit(TERMINATED if terminated else INTERRUPTED)
    finally:
        await context.close()
    return 1 if context.failures else 0


def urls(texts: Sequence[str]) -> list[Url]:
    """The URLs of a command line. Raises UrlError."""
    return [parse(text) for text in texts]
