"""A session in version Two over rxe as a capture shows it: negotiation, NFSv3, NFSv4.1, a callback, every error."""

from __future__ import annotations

import shlex
import sys

import pytest

from tests.peer.version_two_session import comparable
from tests.vm.build import REPO
from tests.vm.guest import Guest
from tests.vm.guest_server import load_devices
from tests.vm.network import Namespace

pytestmark = pytest.mark.timeout(900)

DOCUMENT = REPO / "docs" / "version-two-captured.md"


def session(kind: str = "rxe") -> str:
    """What a capture of the session says, client and server in one guest."""
    with Namespace() as network, Guest("session", network, memory=2048) as guest:
        load_devices(guest, (kind,))
        argv = [sys.executable, "-m", "tests.peer.captured_session", "--device", guest.address]
        done = guest.run(
            f"cd {shlex.quote(str(REPO))} && ulimit -l unlimited && {shlex.join(argv)}",
            timeout=600,
            label=f"a session in version Two over {kind}",
        )
    return done.output


def test_the_session_over_rxe_is_the_one_that_the_document_shows() -> None:
    shown = DOCUMENT.read_text().partition("## Over rxe\n")[2].partition("```text\n")[2].partition("```")[0]
    assert comparable(session()) == comparable(shown)
