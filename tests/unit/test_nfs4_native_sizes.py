"""SETATTR of sizes and owners answered natively: replies and files are those of the general path."""

import random
import struct

import pytest

from nfsd.protocol import nfs4 as p
from tests.support.nfs4 import Client4, LoopbackTransport, wanted
from tests.unit.nfs4_names_support import OK, Side
from tests.unit.test_nfs4_native import ANONYMOUS, CALLERS, OF_CONTENT, SESSIONS, getattr_, on, putfh
from tests.unit.test_nfs4_native_changes import SECONDS, at, mode


@pytest.mark.parametrize("seed", range(2))
def test_random_sizes_and_owners(kind, tmp_path, minor, seed):
    rng = random.Random(seed)

    async def scenario(both):
        pair = []
        for which, name in enumerate((b"one", b"two")):
            (both.path / name.decode()).write_bytes(b"x" * 999)
            (both.path / name.decode()).chmod(0o666)
            both.client.credential = (1001, 1001, ())
            stateid, handle = await both.client.open("/0", name, access=3, owner=b"w" + name)
            reading, _ = await both.client.open("/0", name, access=1, owner=b"r" + name)
            both.client.credential = (0, 0, ())
            side = Side(both, which, handle, both.path)
            side.stateids = (
                stateid,
                reading,
                ANONYMOUS,
                p.stateid4(2**32 - 1, b"\xff" * 12),
                p.stateid4(9, b"none of ours"),
            )
            pair.append(side)
        natively_ = 0
        for _ in range(120):
            what = dict(
                rng.sample(
                    [
                        (4, struct.pack(">Q", rng.choice((0, 1, 5000, 1 << 20, 1 << 63)))),
                        (4, struct.pack(">Q", 100)),
                        (33, mode(rng.choice((0o666, 0o640, 0o4777)))),
                        (36, struct.pack(">I4s", 4, rng.choice((b"1001", b"1002")))),
                        (37, struct.pack(">I4s", 4, b"1001")),
                        (54, at(SECONDS)),
                    ],
                    rng.choice((1, 1, 2)),
                )
            )
            which, caller = rng.choice((0, 0, 0, 0, 1, 2, 3, 4)), rng.choice((*CALLERS, *[(1001, 1001)] * 4))
            behind = rng.choice(([], [getattr_(OF_CONTENT)], [getattr_(OF_CONTENT)], [p.OP_GETFH]))
            before = both.answered
            octets = b"".join(what[number] for number in sorted(what))
            values = p.fattr4(wanted(*what).attr_request, octets)
            shown = [
                await side.run(
                    putfh(side.handle),
                    (p.OP_SETATTR, p.SETATTR4args(side.stateids[which], values)),
                    *behind,
                    caller=caller,
                )
                for side in pair
            ]
            assert shown[0] == shown[1], (what, which)
            natively_ += both.answered > before and 4 in what and shown[0][0] == OK
            facts = [(both.path / name).stat() for name in ("one", "two")]
            for field in ("st_mode", "st_uid", "st_gid", "st_size"):
                assert getattr(facts[0], field) == getattr(facts[1], field)
        return natively_

    assert on(kind, tmp_path, minor, scenario) > 3


@pytest.mark.parametrize("minor", SESSIONS)
def test_a_size_is_set_under_a_share(tmp_path, minor):
    """A special stateid does not pass another client's deny (RFC 8881 section 9.7)."""

    async def scenario(both):
        (both.path / "a").write_bytes(b"content")
        other = await Client4(both.general, 1, name=b"other", transport=LoopbackTransport()).connect()
        stateid, handle = await other.open("/0", b"a", access=3, deny=2)
        values = p.fattr4(wanted(4).attr_request, bytes(8))
        setting = (p.OP_SETATTR, p.SETATTR4args(ANONYMOUS, values))
        for wire, slot in ((both.native, 0), (both.general, 1)):
            reply = await wire.call(None, both.message(slot, putfh(handle), setting))
            assert Client4.parse(reply)[0] == p.NFS4ERR_LOCKED
        assert (both.path / "a").read_bytes() == b"content"
        await other.close(stateid, handle)
        assert Client4.parse(await both.native.call(None, both.message(0, putfh(handle), setting)))[0] == OK
        assert (both.path / "a").read_bytes() == b""

    on("memory", tmp_path, minor, scenario)
