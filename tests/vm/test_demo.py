"""``make demo`` does what README.md and docs/fio.md show of it."""

import pytest

from tests.transcripts.guest import all_blocks, essence, play

BLOCKS = all_blocks()


@pytest.mark.parametrize("name", list(BLOCKS))
def test_the_demonstration_is_what_the_document_shows(name: str) -> None:
    block = BLOCKS[name]
    shown = block.document.read_text()[block.begin : block.end]
    assert essence(play(block)) == essence(shown), "python -m tests.transcripts.guest writes it anew"


def test_the_documents_show_the_demonstration_and_a_job_beside_the_kernel() -> None:
    assert set(BLOCKS) == {"demo", "fio"}
