"""A whole session in version Two with the running command, over the embedded provider; docs/version-two.md shows it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.peer import version_two_session
from tests.peer.version_two_session import comparable

DOCUMENT = Path(__file__).parents[2] / "docs" / "version-two.md"


def test_negotiation_nfs_in_all_versions_callbacks_and_every_error(tmp_path):
    with version_two_session.server(tmp_path) as ports:
        transcript = asyncio.run(version_two_session.session(ports)).text()
    for said in (
        "RDMA2_ERR_VERS, versions 1 to 1",
        "ERR_VERS, versions 1 to 2",
        "RDMA2_ERR_BAD_XDR",
        "RDMA2_ERR_CANT_REPLY: processed, segment 2 needs 60000 octets",
        "RDMA2_ERR_INVAL_PROC",
        "RDMA2_ERR_INVAL_OPTION",
        "NFS version 3, WRITE",
        "NFS version 4, COMPOUND",
        "CB_COMPOUND",
        "RDMA2_NOMSG",
        "; invalidates H1",
    ):
        assert said in transcript
    log = (tmp_path / "log").read_text()
    assert log.count("speaks version 2, thresholds 4096 in and 4096 out") == 2
    shown = DOCUMENT.read_text().partition("```text\n")[2].partition("```")[0]
    assert comparable(shown) == comparable(transcript)
