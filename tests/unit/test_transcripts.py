"""The documents' transcripts are what the commands print."""

from pathlib import Path

import pytest

from tests.transcripts import REPO, Block, blocks, documents, essence, replace, steps, unmarked
from tests.transcripts.__main__ import play
from tests.transcripts.stages import Impossible

WITH = [document for document in documents() if list(blocks(document))]
ELSEWHERE = {"docs/install.md": None, "README.md": ["# make run"]}
"""What test_install_docs.py compares; None: all of a document."""


def played(document: Path) -> list[tuple[Block, str]]:
    """What the document's commands print here."""
    try:
        return play(document)
    except Impossible as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("document", WITH, ids=lambda document: document.name)
def test_the_transcripts_of_a_document_are_what_its_commands_print(document: Path) -> None:
    for block, printed in played(document):
        shown = document.read_text()[block.begin : block.end]
        assert essence(shown) == essence(printed), "python -m tests.transcripts writes it anew"


@pytest.mark.parametrize("document", documents(), ids=lambda document: document.name)
def test_no_transcript_is_without_a_script(document: Path) -> None:
    if (known := ELSEWHERE.get(str(document.relative_to(REPO)), [])) is not None:
        assert unmarked(document) == known


DOCUMENT = """\
Look:

<!-- transcript hello -->
```console
$ echo one; \\
  echo 2026-01-02 03:04:05
one
2026-02-03 04:05:06
$ false
[exit status 1]
```

```console
$ rdma-nfsd ls
```

```sh
rdma-nfsd ls
```

    # rdma-nfsd check
"""


def test_a_document_is_written_anew_where_it_is_not_true_any_more(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(DOCUMENT)
    (block,) = blocks(document)
    assert [command for command, _ in block.steps] == ["echo one; \\\n  echo 2026-01-02 03:04:05", "false"]
    assert unmarked(document) == ["$ rdma-nfsd ls", "    # rdma-nfsd check"]
    assert not replace(document, played(document))
    assert document.read_text() == DOCUMENT
    document.write_text(DOCUMENT.replace("\none\n", "\ntwo\n"))
    assert replace(document, played(document))
    assert document.read_text() == DOCUMENT.replace("2026-02-03 04:05:06", "2026-01-02 03:04:05")


def test_what_differs_in_more_than_times_and_ports_differs() -> None:
    line = "-rw-r--r-- 1 root root 11 Mar  1  2025 tcp://127.0.0.1:2049/data/monday"
    assert essence(line) == essence(line.replace("Mar  1  2025", "Nov 22 10:11").replace("2049", "43210"))
    for old, new in (("root", "games"), ("11", "12"), ("monday", "tuesday"), ("rw-", "r--")):
        assert essence(line) != essence(line.replace(old, new))
    with pytest.raises(ValueError, match="begins with a command"):
        list(steps("what comes before\n$ true\n"))
