"""An export's place in the pseudo file system, to hosts of other exports: its handle is no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.hosts import Site, on_site
from tests.support.nfs4 import mode

GUEST = "127.0.0.3"


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_who_may_not_use_an_export_gets_nothing_of_it_through_its_place(tmp_path: Path, minor: int) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "f").write_bytes(b"secret")
    (hidden / "f").chmod(0o666)
    hidden.chmod(0o777)

    async def test(site: Site) -> None:
        client = await (await site.client(GUEST, minor)).connect()
        place = site.daemon._nfs4.pseudo.root.children[b"hidden"]
        there = (p.OP_PUTFH, p.PUTFH4args(place.handle))

        def opening(access: int, create: p.fattr4 | None = None) -> tuple[int, Any]:
            claim = p.open_claim4(p.open_claim_type4.CLAIM_NULL, file=b"f")
            how = p.openflag4(p.opentype4.OPEN4_NOCREATE)
            if create is not None:
                how = p.openflag4(p.opentype4.OPEN4_CREATE, p.createhow4(p.createmode4.UNCHECKED4, createattrs=create))
            seqid = 0 if minor else client.seqid(b"o")
            return p.OP_OPEN, p.OPEN4args(seqid, access, 0, p.open_owner4(client.clientid, b"o"), how, claim)

        assert await client.status(there, opening(1)) == p.NFS4ERR_NOENT
        assert await client.status(there, opening(2)) == p.NFS4ERR_NOENT
        assert await client.status(there, opening(1, mode(0o644))) == p.NFS4ERR_ROFS
        assert await client.status(there, (p.OP_LOOKUP, p.LOOKUP4args(b"f"))) == p.NFS4ERR_NOENT
        assert await client.status(there, (p.OP_REMOVE, p.REMOVE4args(b"f"))) == p.NFS4ERR_ROFS
        if minor == 2:
            assert await client.status(there, (p.OP_LISTXATTRS, p.LISTXATTRS4args(0, 100))) == p.NFS4ERR_NOTSUPP
        # Its own export is there all the same.
        assert await client.status(*client.path("/export"), p.OP_GETFH) == 0
        assert (hidden / "f").read_bytes() == b"secret"

    on_site(
        tmp_path, test, f"['{GUEST}']", "  nfs4: {grace_time: 0}\n",
        "  - path: hidden\n    pseudo: /hidden\n    clients: ['127.0.0.9']\n",
    )  # fmt: skip
