"""The responder's tests over devices, in a guest: the synthetic requester's messages, as over loopback and softiwarp,
the client library's calls, and what is answered natively beside what the general path answers.

What needs remote invalidation of a process's memory is left out, in both directions: no device that is here can do that
(tests/vm/test_verbs_peer.py and Linux's own client show invalidation); and a test that sends more messages than it was
granted, trusting that the server takes each before the next comes, which only loopback promises.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator

import pytest

from tests.vm.build import REPO
from tests.vm.guest import Guest
from tests.vm.guest_server import DEVICES, address_over, load_devices
from tests.vm.network import Namespace

pytestmark = pytest.mark.timeout(1200)

MODULES = (
    "test_device_live.py",
    "test_responder_calls.py",
    "test_responder_replies.py",
    "test_backward_long.py",
    "test_client_rdma.py",
)
CHOSEN = (
    "not invalidat and not any_size_in_any_place and not discarded_messages_use_up"
    " and not (test_a_long_call_and_a_long_reply and two) and not (test_only_what_is_too_large and two)"
)
NATIVE = ("test_rdma_native.py", "test_rdma_native_reads.py")
NATIVE_CHOSEN = "(random or credits or drains or little_memory or stable or retransmitted) and not disk"


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with Namespace() as network, Guest("messages", network, memory=2048, interfaces=len(DEVICES)) as made:
        load_devices(made)
        yield made


@pytest.mark.parametrize("kind", sorted(DEVICES))
@pytest.mark.parametrize(("modules", "chosen"), [(MODULES, CHOSEN), (NATIVE, NATIVE_CHOSEN)], ids=["calls", "native"])
def test_calls_and_replies_of_every_form_over_a_device(
    guest: Guest, kind: str, modules: tuple[str, ...], chosen: str
) -> None:
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=native", "-rf", "-k", chosen]
    argv += [f"tests/unit/{module}" for module in modules]
    done = guest.run(
        f"cd {shlex.quote(str(REPO))} && ulimit -l unlimited && "
        f"RDMA_NFSD_TEST_DEVICE={address_over(guest, kind)} {shlex.join(argv)} 2>&1",
        timeout=900,
        check=False,
        label=f"{modules[0]} and others over {kind}",
    )
    assert done.rc == 0, done.output[-6000:]
