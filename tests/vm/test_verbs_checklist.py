"""What tests/rfc/linux.json says of Linux's server is what it does.

Where this fails with another kernel, write the facts anew: ``python -m tests.vm.checklist``.
"""

from __future__ import annotations

import json

from tests.vm.checklist import FACTS, ask_linux


def test_the_kernels_server_answers_as_written_down() -> None:
    assert ask_linux() == json.loads(FACTS.read_text())
