"""The whole version Two session, captured and decoded; docs/version-two-captured.md shows it."""

from __future__ import annotations

from pathlib import Path

from tests.peer import captured_session
from tests.peer.version_two_session import comparable

DOCUMENT = Path(__file__).parents[2] / "docs" / "version-two-captured.md"


def test_the_document_shows_what_a_capture_of_the_session_says(tmp_path):
    shown = DOCUMENT.read_text().partition("```text\n")[2].partition("```")[0]
    assert comparable(captured_session.run(tmp_path)) == comparable(shown)
