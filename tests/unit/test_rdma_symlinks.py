"""SYMLINK's text in a Read chunk (RFC 8267 section 3): taken natively, and from no other procedure about names."""

import os
import struct

import pytest

from tests.unit.rdma_native_support import run
from tests.unit.test_nfs3_native_changes import MKDIR, REMOVE, SYMLINK, linking_to, making, removal

OK, INVAL, NAMETOOLONG = (struct.pack(">I", status) for status in (0, 22, 63))
SUCCESS, GARBAGE = bytes(4), struct.pack(">I", 4)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_the_text_of_a_link_comes_in_a_read_chunk(kind, tmp_path):
    async def scenario(both):
        await both.call(0, REMOVE, removal(both.root, b"none"))  # the first call of a connection
        answered = both.answered(SYMLINK)
        for number, (text, padding, outcome) in enumerate(
            (
                (b"four", 0, OK),
                (b"elsewhere", 0, OK),
                (b"elsewhere", 3, OK),
                (b"t" * 4095, 0, OK),
                (b"t" * 4096, 0, NAMETOOLONG),
                (b"t" * 9001, 3, NAMETOOLONG),
                (b"with\0zero", 0, INVAL),
            )
        ):
            name = b"link %d" % number
            # What stands before the text's octets: its length is the last word.
            whole = linking_to(both.root, name, text)
            arguments = whole[: len(whole) - (len(text) + 3 & ~3)]
            reply = await both.call(0, SYMLINK, arguments, data=text + bytes(padding), cuts=(1, 5, 4000))
            assert reply[4][16:24] == SUCCESS + outcome, (number, reply)
            assert both.answered(SYMLINK) == answered + number + 1
            if outcome == OK:
                assert os.readlink(os.path.join(os.fsencode(both.path), name)) == text
        assert len(os.listdir(both.path)) == 4

    run(kind, tmp_path, scenario)


def test_a_read_chunk_that_is_no_text_is_garbage(tmp_path):
    async def scenario(both):
        whole = linking_to(both.root, b"link", b"a text of sixteen"[:16])
        for procedure, arguments, data in (
            (SYMLINK, whole[:-16], b"not its length"),
            (SYMLINK, whole, b"a text of sixtee"),
            (SYMLINK, whole[:-20], b"before its length"),
            (MKDIR, making(both.root, b"d"), b"nothing"),
            (REMOVE, removal(both.root, b"d"), b"nothing"),
        ):
            reply = await both.call(0, procedure, arguments, data=data)
            assert reply[4][16:20] == GARBAGE, procedure
        assert os.listdir(both.path) == []

    run("memory", tmp_path, scenario)
