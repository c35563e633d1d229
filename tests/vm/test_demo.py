"""What the documents show of guests is what happens there: ``make demo``, a fio job, RDMA devices, a client refused."""

import pytest

from tests.transcripts.guest import all_blocks, essence, play

BLOCKS = all_blocks()


@pytest.mark.parametrize(
    "name", [name if name == "demo" else pytest.param(name, marks=pytest.mark.long) for name in BLOCKS]
)
def test_what_a_document_shows_is_what_happens(name: str) -> None:
    block = BLOCKS[name]
    shown = block.document.read_text()[block.begin : block.end]
    assert essence(play(block)) == essence(shown), "python -m tests.transcripts.guest writes it anew"


def test_the_documents_show_the_demonstration_a_job_beside_the_kernel_devices_and_a_refusal() -> None:
    assert set(BLOCKS) == {"demo", "devices", "fio", "refused"}
