"""What tests/rfc/servers.json says of Linux's server over RDMA, and of both servers over devices, is what they do.

Where this fails with a kernel of another series, write the facts anew: ``python -m tests.vm.four_servers --only linux``
(or ``devices``).
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.vm.four_servers import FACTS, Found, linux, on_devices

UNSTEADY = "RFC 8166 3.4.5 position"
"""Over a siw device, a Read chunk far from its place has cost the connection to Linux's server in one of two runs."""


def by_demand(answers: Found) -> dict[str, tuple[bool, str]]:
    """Whether the server differs (the words may have its handles and XIDs in them), and what it lacks."""
    steady = [answer for answer in answers if answer["demand"] != UNSTEADY]
    return {answer["demand"]: (bool(answer["differs"]), answer["absent"]) for answer in steady}


@pytest.mark.parametrize("found", [linux, on_devices])
def test_servers_answer_as_written_down(found: Callable[[], dict[str, Found]]) -> None:
    written = json.loads(FACTS.read_text())
    for name, answers in found().items():
        assert by_demand(answers) == by_demand(written[name]), name
