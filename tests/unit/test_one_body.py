"""Each procedure of NFSv3 has one body: a native function, or a handler in Python."""

from __future__ import annotations

from pathlib import Path

from nfsd.exports import Export, ExportTable
from nfsd.protocol.nfs3 import PROCEDURES
from nfsd.v3.direct import Nfs3Direct
from nfsd.v3.program import nfs3_procedures
from nfsd.vfs.service import FileService
from rpcrdma.rpc.offers import offers

STILL_TWO = {"SETATTR"}
"""Those whose native function leaves something to a handler. A name that has gone from here does not come back."""

IN_PYTHON = {"NULL", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO", "PATHCONF"}
"""Those that have a handler only."""


def test_each_procedure_has_one_body(tmp_path: Path) -> None:
    service = FileService(ExportTable((Export(1, str(tmp_path), "/x"),)), str(tmp_path))
    native = Nfs3Direct(service)
    procedures = nfs3_procedures(service, service.exports)
    assert procedures.keys() == PROCEDURES.keys()
    bodies = {row.name: (offers(native, number), row.handler is not None) for number, row in procedures.items()}
    assert {name for name, has in bodies.items() if has == (True, True)} == STILL_TWO
    assert {name for name, has in bodies.items() if has == (False, True)} == IN_PYTHON
    assert (False, False) not in bodies.values()
