"""Captures of traffic on RDMA devices, in a guest, dissected by tshark there."""

from __future__ import annotations

import shlex
import sys

import pytest

from tests.vm.build import REPO
from tests.vm.guest import Guest
from tests.vm.guest_server import DEVICES, compile_here, load_devices
from tests.vm.network import Namespace

pytestmark = pytest.mark.timeout(1200)

TESTS = [f"tests/unit/test_capture_{name}.py" for name in ("tshark", "providers")]


@pytest.mark.parametrize("kind", sorted(DEVICES))
def test_what_a_device_carries_is_seen(kind: str) -> None:
    compile_here("tests")
    with Namespace() as network, Guest("capture", network, memory=2048) as guest:
        load_devices(guest, (kind,))
        # The export in memory, so that calls are answered natively there, too: the guest's root is an overlay.
        guest.run("mkdir /srv/tests && mount -t tmpfs -o size=512m tests /srv/tests")
        here = f"cd {shlex.quote(str(REPO))} && ulimit -l unlimited && "
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-o",
            "timeout=500",
            "-p",
            "no:cacheprovider",
            "--basetemp=/srv/tests/base",
            "--tb=native",
            "-rf",
            *TESTS,
        ]
        done = guest.run(
            f"{here} RDMA_NFSD_TEST_DEVICE={guest.address} {shlex.join(argv)} 2>&1",
            timeout=600,
            check=False,
            label=f"captures over {kind}",
        )
    assert done.rc == 0, done.output[-6000:]
