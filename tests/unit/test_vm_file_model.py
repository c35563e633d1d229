"""The power-cut rig: its model tells losses from what was under way, its disk loses only what was not flushed."""

import os
import socket
import struct

from tests.vm.file_model import FileModel, Node
from tests.vm.volatile_disk import VolatileDisk

RECORDING = """do {"op": "create", "path": "a"}
ack
do {"op": "write", "path": "a", "how": "osync", "offset": 4, "length": 100, "seed": 7}
ack
do {"op": "rename", "path": "a", "to": "b"}
"""


def test_what_is_acknowledged_must_be_there():
    expected = FileModel.replay(RECORDING + "ack\n")
    assert expected.acknowledged == 3
    found = FileModel.replay(RECORDING)
    assert expected.differences(found) == ["b: file is missing", "a: file should not be there"]
    found = FileModel.replay(RECORDING + "ack\n")
    found.nodes["b"].data[50] ^= 1
    assert expected.differences(found) == ["b: differs from octet 50 on"]


def test_the_operation_under_way_may_have_happened_or_not():
    expected = FileModel.replay(RECORDING)
    assert expected.pending is not None
    for lines in (RECORDING, RECORDING + "ack\n"):
        assert expected.differences(FileModel.replay(lines)) == []
    neither = FileModel.replay(RECORDING)
    del neither.nodes["a"]
    assert expected.differences(neither) == ["a: file is missing"]


def test_a_write_under_way_may_be_torn_but_touches_nothing_else():
    writing = 'do {"op": "write", "path": "a", "how": "osync", "offset": 10, "length": 20, "seed": 9}\n'
    expected = FileModel.replay(
        RECORDING.replace("rename", "chmod").replace('"to": "b"', '"mode": 420') + "ack\n" + writing
    )
    found = FileModel.replay(RECORDING)
    found.nodes["a"].data[15:20] = b"torn!"
    assert expected.differences(found) == []
    found.nodes["a"].data[35] ^= 1
    assert expected.differences(found) != []


def test_a_file_under_creation_may_still_lack_its_mode():
    expected = FileModel.replay('do {"op": "create", "path": "n"}\n')
    found = FileModel()
    found.nodes["n"] = Node("file", 0)
    assert expected.differences(found) == []


def attach(path):
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    stream = peer.makefile("rb")
    assert stream.read(18)[:16] == b"NBDMAGICIHAVEOPT"
    peer.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, 0))
    size, _ = struct.unpack(">QH", stream.read(10))
    return peer, stream, size


def request(peer, stream, kind, offset=0, data=b"", length=None, flags=0):
    length = len(data) if length is None else length
    peer.sendall(struct.pack(">IHHQQI", 0x25609513, flags, kind, 1, offset, length) + data)
    _, error, _ = struct.unpack(">IIQ", stream.read(16))
    assert error == 0
    return stream.read(length) if kind == 0 else b""


def test_a_power_cut_keeps_what_was_flushed_and_loses_some_of_the_rest(tmp_path):
    disk = VolatileDisk(tmp_path / "image", 1 << 20, tmp_path / "socket")
    peer, stream, size = attach(str(tmp_path / "socket"))
    assert size == 1 << 20
    request(peer, stream, 1, 1000, b"flushed" * 1000)
    request(peer, stream, 3)
    request(peer, stream, 1, 600_000, b"durable", flags=1)  # FUA
    request(peer, stream, 1, 100_000, b"x" * 400_000)
    request(peer, stream, 1, 1001, b"LOST?")
    assert request(peer, stream, 0, 1000, length=7) == b"fLOST?d"
    kept, lost = disk.power_cut(seed=3)
    assert kept
    assert lost
    image = (tmp_path / "image").read_bytes()
    assert image[1008:8000] == (b"flushed" * 1000)[8:7000]
    assert image[600_000:600_007] == b"durable"
    assert 0 < image[100_000:500_000].count(b"x") < 400_000
    assert os.path.getsize(tmp_path / "image") == 1 << 20
