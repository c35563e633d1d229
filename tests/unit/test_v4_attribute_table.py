"""docs/nfsv4-attributes.md says what the code does: every attribute, in every minor version, by asking a server."""

import re
from pathlib import Path

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.v4 import attributes
from nfsd.v4.attributes import words_of
from tests.support.nfs4 import values, wanted, with_client

DOCUMENT = Path(__file__).parents[2] / "docs" / "nfsv4-attributes.md"
NOT_HERE = {p.FATTR4_QUOTA_AVAIL_HARD, p.FATTR4_QUOTA_AVAIL_SOFT, p.FATTR4_QUOTA_USED, p.FATTR4_SEC_LABEL}
"""What file systems in these tests do not keep; see test_v4_file_systems.py and tests/vm/test_attributes.py."""


def documented() -> dict[int, tuple[str, list[str]]]:
    """Number to name and what is said of 4.0, 4.1, 4.2."""
    rows = {}
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"\d+", cells[1]):
            rows[int(cells[1])] = (cells[0], cells[2:5])
    return rows


def test_every_attribute_is_in_the_document_once():
    declared = {
        value: name.removeprefix("FATTR4_")
        for name, value in vars(p).items()
        if name.startswith("FATTR4_") and isinstance(value, int)
    }
    assert {number: name for number, (name, _) in documented().items()} == declared
    assert len(declared) > 80


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_attributes_are_answered_and_set_as_the_document_says(tmp_path, minor):
    async def test(client, export, server):
        (export / "f").write_bytes(b"")
        here = client.path("/0/f")
        *_, got = await client.run(*here, (p.OP_GETATTR, wanted(p.FATTR4_SUPPORTED_ATTRS)))
        d = values(got.resok4.obj_attributes)
        supported = attributes.mask_of([d.uint32() for _ in range(d.uint32())])
        for number, (name, cells) in documented().items():
            said = cells[minor]
            assert said in ("-", "get", "set", "get, set"), name
            listed = bool(supported >> number & 1)
            assert listed == (said != "-" and number not in NOT_HERE), name
            status, results = await client.raw(*client.in_session(*here, (p.OP_GETATTR, wanted(number))))
            if said == "set" and number != p.FATTR4_MODE_UMASK and status:
                assert status == p.NFS4ERR_INVAL, name
            else:
                assert status == p.NFS4_OK, name
                answered = results[-1][1].resok4.obj_attributes.attrmask == words_of(1 << number)
                assert answered == ("get" in said and number not in NOT_HERE), name
            # A value that cannot be decoded tells whether the attribute would be taken.
            given = p.SETATTR4args(p.stateid4(0, bytes(12)), p.fattr4(words_of(1 << number), b""))
            status = await client.status(*here, (p.OP_SETATTR, given))
            if "set" in said and number in NOT_HERE:
                assert status == p.NFS4ERR_ATTRNOTSUPP, name
            elif "set" in said:
                assert status in (p.NFS4ERR_BADXDR, p.NFS4ERR_INVAL), name
                assert number == p.FATTR4_MODE_UMASK or status == p.NFS4ERR_BADXDR, name
            elif said == "get":
                assert status == p.NFS4ERR_INVAL, name
            else:
                assert status == p.NFS4ERR_ATTRNOTSUPP, name

    with_client(tmp_path, minor, test)
