"""The table in docs/backends.md of what each backend answers to which operation is what the suite has seen."""

import re
import subprocess
from pathlib import Path

import pytest

from nfsd.backend_suite.operations import QUESTIONS
from nfsd.backend_suite.trying import Entry
from tests.unit.test_backends_served import MEMORY, THREADED, run
from tests.unit.test_vfs_mounts import command, mounted

TEXT = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()
ANSWERS = re.compile(r"OK|[A-Z]+")


def told(column):
    """What the document says of one backend, by operation."""
    table = "| Asked |" + TEXT.partition("| Asked |")[2].partition("\n\n")[0]
    head, _, *cells = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    at = head.index(column)
    return {row[0]: row[at] for row in cells}


def seen(tmp_path, entry, *, writable=True, patience=100):
    """What the backend says itself."""
    answers = {}

    async def test(server):
        async with server.asked(writable=writable) as asked:
            for operation, question in QUESTIONS.items():
                answers[operation] = await question(asked)

    run(tmp_path, entry, test, patience=patience)
    return answers


@pytest.mark.parametrize("kind", ["memory", "plug-in"])
def test_stores(tmp_path, kind):
    assert seen(tmp_path, MEMORY if kind == "memory" else THREADED) == told(kind)


@pytest.mark.parametrize("kind", ["ext4", "btrfs"])
def test_directories(tmp_path, kind):
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    if not command(f"mkfs.{kind}", "-q", str(image)):
        pytest.skip(f"there is no mkfs.{kind}")
    with mounted(str(place), "-o", "loop", str(image)):
        (place / "exported").mkdir()
        assert seen(tmp_path, Entry({"path": str(place / "exported")})) == told(kind)


def test_git(tmp_path):
    pytest.importorskip("pygit2")
    place = tmp_path / "repository"
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-C", str(place)]
    subprocess.run(["git", "init", "-q", str(place)], check=True)
    (place / "f").write_bytes(b"some data")
    for words in (["add", "-A"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    entry = Entry({"backend": "git", "options": {"repository": str(place)}})
    assert seen(tmp_path, entry, writable=False) == told("git")


def test_fsspec(tmp_path):
    pytest.importorskip("fsspec")
    store = tmp_path / "store"
    store.mkdir()
    options = {"url": f"file://{store}", "writable": True, "fresh": 0}
    assert seen(tmp_path, Entry({"backend": "fsspec", "options": options})) == told("fsspec")


def test_every_operation_has_a_row():
    for column in ("ext4", "btrfs", "memory", "git", "fsspec", "plug-in", "cephfs"):
        assert list(told(column)) == list(QUESTIONS)
        assert all(ANSWERS.fullmatch(answer) for answer in told(column).values())
