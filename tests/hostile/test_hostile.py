"""The running server holds against every attack, over TCP, iWARP and beside them.

One server and one honest client for most attacks, one after the other, so that what an attack leaves behind meets the
next, but for those that fill a server until leases end; each attack has addresses of its own to come from. What must
hold is :meth:`tests.hostile.run.Outcome.faults`: no answer to the honest client is missing or wrong, memory,
descriptors and log are bounded, the server is there and comes to rest; and the attack was one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.hostile.attack import Attack, Scene
from tests.hostile.attacks import ATTACKS
from tests.hostile.attacks.gss import GSS
from tests.hostile.run import Outcome, Stage
from tests.hostile.server import realm
from tests.support.kdc import WITHOUT_KDC, Realm

SECONDS = 0.7
"""Of each attack, besides what it takes to set it up."""
pytestmark = pytest.mark.timeout(300)
Perform = Callable[[Attack], Outcome]


@pytest.fixture(scope="module")
def users() -> Iterator[Realm | None]:
    with realm() as made:
        yield made


@pytest.fixture(scope="module")
def perform(users: Realm | None) -> Iterator[Perform]:
    """Run an attack; a server that has not held, or that was filled, is not asked to hold against the next. Attacks on
    RPCSEC_GSS have a server and an honest client of their own, with users who are known by Kerberos. There is one of
    them at a time: an honest client whose server nobody attacks would take a processor for nothing."""
    kept: list[Stage] = []

    def leave() -> None:
        while kept:
            kept.pop().__exit__(None, None, None)

    def run(attack: Attack) -> Outcome:
        who = users if attack.layer == GSS else None
        if attack.layer == GSS and users is None:
            pytest.skip(WITHOUT_KDC)
        if kept and kept[0].realm is not who:
            leave()
        if not kept:
            kept.append(Stage(who).__enter__())
        outcome = None
        try:
            outcome = kept[0].run(attack, SECONDS)
        finally:
            if outcome is None or attack.bound or outcome.faults():
                leave()
        return outcome

    yield run
    leave()


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=str)
def test_the_server_holds(attack: Attack, perform: Perform) -> None:
    outcome = perform(attack)
    assert outcome.faults() == []
    assert len(outcome.during) > 20, "the honest client has hardly called"


def test_an_attack_without_effect_is_told(perform: Perform) -> None:
    def idle(scene: Scene) -> None:
        scene.count("calls", 0)

    outcome = perform(Attack("none", "idle", "nothing", idle, "calls", lambda before, end: False))
    told = [fault.partition(":")[0] for fault in outcome.faults()]
    assert told == ["the attack was none", "the bound was not reached"]
