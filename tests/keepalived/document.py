"""The files that docs/clustering.md tells an administrator to write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "clustering.md"


def file(name: str) -> str:
    """What the document has in a file."""
    found = re.search(rf"<!-- file {re.escape(name)} -->\n```\w*\n(.*?)```\n", DOCUMENT.read_text(), re.DOTALL)
    assert found, name
    return found[1]


def disk_script() -> str:
    """The script of the set-up with one disk: that of the other one with another end."""
    whole, end = file("/etc/keepalived/rdma-nfsd"), file("disk /etc/keepalived/rdma-nfsd")
    return whole[: whole.index(end.splitlines()[0])] + end
