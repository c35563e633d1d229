"""Requests to the control sockets of the processes (:mod:`nfsd.control`). Owns :func:`ask`, the asynchronous one."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from nfsd.control import address_in

_LONGEST: Final = 64 << 20
NOBODY: Final = (FileNotFoundError, ConnectionRefusedError)


class Silent(Exception):
    """There is no answer; the process is being started, or has ended."""


async def ask(state_dir: str, command: str, patience: float, **fields: Any) -> dict[str, Any]:
    """The answer of the process with this directory, within so many seconds. Raises ValueError with what it has
    against the request, Silent."""
    try:
        async with asyncio.timeout(patience):
            with address_in(state_dir) as address:
                reader, writer = await asyncio.open_unix_connection(address, limit=_LONGEST)
            try:
                writer.write(json.dumps({"command": command, **fields}).encode() + b"\n")
                answer = json.loads(await reader.readline())
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise Silent(str(error) or "it does not answer") from error
    except ValueError as error:
        raise Silent("it has ended meanwhile") from error
    if "error" in answer:
        raise ValueError(answer["error"])
    return dict(answer)
