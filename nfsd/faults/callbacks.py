"""Callbacks that get lost: on their way to the client, or their answers on the way back.

Owns :class:`FaultyCallbacks`; imports the callbacks. The server notices nothing but that no answer comes in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from nfsd.events import addresses_of
from nfsd.faults.choosing import Faults
from nfsd.protocol import nfs4 as p
from nfsd.state import StateEngine
from nfsd.state.clients import Client
from nfsd.v4.callbacks import CALLBACK_TIME, CallbackError, CallbackService, Operation


class FaultyCallbacks(CallbackService):
    """Callbacks of which some get lost."""

    def __init__(self, faults: Faults, engine: StateEngine, *, anywhere: bool = False) -> None:
        super().__init__(engine, anywhere=anywhere)
        self._faults = faults

    async def call(
        self,
        client: Client,
        operations: Sequence[Operation],
        *,
        timeout: float = CALLBACK_TIME,  # noqa: ASYNC109 (as there)
        referring: Sequence[p.referring_call_list4] = (),
        wait_for_path: bool = False,
        come: asyncio.Event | None = None,
    ) -> list[Any]:
        """Call the client, unless that is to be lost."""
        names = [p.CALLBACK_OPERATIONS[number].name for number, _ in operations]
        fault = self._faults.callback(addresses_of(client), names)
        send = partial(
            super().call, client, operations, timeout=timeout, referring=referring, wait_for_path=wait_for_path,
            come=come,
        )  # fmt: skip
        if not fault:
            return await send()
        until = asyncio.get_running_loop().time() + timeout
        if fault == "unheard":
            await send()
        await asyncio.sleep(max(0.0, until - asyncio.get_running_loop().time()))
        raise CallbackError("timeout", "the client has not answered in time")
