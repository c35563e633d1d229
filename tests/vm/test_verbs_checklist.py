"""What tests/rfc/servers.json says of Linux's server over RDMA is what it does.

Where this fails with another kernel, write the facts anew: ``python -m tests.vm.four_servers --only linux``.
"""

from __future__ import annotations

import json

from tests.vm.four_servers import FACTS, Found, linux


def by_demand(answers: Found) -> dict[str, tuple[bool, str]]:
    """Whether the server differs (the words may have its handles and XIDs in them), and what it lacks."""
    return {answer["demand"]: (bool(answer["differs"]), answer["absent"]) for answer in answers}


def test_the_kernels_server_answers_as_written_down() -> None:
    written = json.loads(FACTS.read_text())
    for name, answers in linux().items():
        assert by_demand(answers) == by_demand(written[name]), name
