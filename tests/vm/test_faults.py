"""A server that misbehaves on purpose, and a Linux client: what each fault must do to a program on an NFS mount.

What must be is that which RFCs and the client's own design say; all that differs between kernels is in docs/faults.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.faults import SCENARIOS, VERSIONS, Scenario, Stage, stage
from tests.vm.network import Network

pytestmark = pytest.mark.faults

FAILS = {
    "NFS3ERR_IO": "EIO",
    "NFS4ERR_IO": "EIO",
    "NFS3ERR_NOSPC": "ENOSPC",
    "NFS4ERR_NOSPC": "ENOSPC",
    "refuse: ERR_CHUNK": "EIO",
    "NFS3ERR_STALE": "ESTALE",
}
"""What a program gets, by what is in the rule."""
ANYTHING = ("refuse: ERR_VERS", "invalidate: last", "invalidate: wrong", "drop: ", "NFS4ERR_STALE", "COMMIT")
"""What kernels differ about, or what takes minutes."""


@pytest.fixture(scope="module")
def played(network: Network, directory: Path) -> Iterator[Stage]:
    with stage(network, directory) as made:
        yield made


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: next(iter(scenario.rules.values())))
def test_a_program_gets_what_it_must(played: Stage, scenario: Scenario, version: str) -> None:
    rule = scenario.text(version)
    if rule is None or any(part in rule for part in ANYTHING):
        pytest.skip("nothing must be")
    outcome = played.play(scenario, version)
    assert outcome.acted, outcome
    wanted = next((name for part, name in FAILS.items() if part in rule), "ok")
    assert outcome.result == wanted, outcome
    if "delay: 3" in rule or "delay_reply: 3" in rule:
        assert outcome.seconds >= 3
