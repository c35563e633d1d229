"""As whom calls act, seen from the wire: the kernel sees every caller as exactly the expected user."""

import asyncio
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nfsd.protocol import nfs4 as p
from nfsd.protocol.nfs3 import (
    NFS_PROGRAM,
    CREATE3args,
    SETATTR3args,
    createhow3,
    createmode3,
    diropargs3,
    nfsstat3,
)
from nfsd.v4.attributes import words_of
from rpcrdma.rpc.messages import auth_stat, opaque_auth
from rpcrdma.xdr import Encoder
from tests.nfs3_client import attributes, auth_sys
from tests.support.callers import ACTIONS, EDGES, NOBODY, SHARED, SQUASHES, VERSIONS, Served, Step

_ZEROS = p.stateid4(0, bytes(12))


class Running:
    """A server whose loop turns while a test waits."""

    def __init__(self, memory: bool) -> None:
        self.runner = asyncio.Runner()
        self.served = Served(memory)
        self.runner.run(self.served.__aenter__())

    def check(self, *steps: Step) -> None:
        async def all_of_them() -> None:
            for step in steps:
                await self.served.check(step)

        self.runner.run(all_of_them())

    def close(self) -> None:
        self.runner.run(self.served.__aexit__())
        self.runner.close()


@pytest.fixture(scope="module", params=["disk", "memory"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    made = Running(request.param == "memory")
    yield made
    made.close()


@pytest.fixture(params=["disk", "memory"])
def fresh(request: pytest.FixtureRequest) -> Iterator[Running]:
    """As ``running``, whose connection may be spoiled."""
    made = Running(request.param == "memory")
    yield made
    made.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("uid", "gid"), [(NOBODY, 1001), (NOBODY, 7), (NOBODY, NOBODY), (7, NOBODY)])
def test_the_id_of_nobody_makes_nobody_root(fresh: Running, version: int, uid: int, gid: int) -> None:
    """One ordinary call has a thread be the server again; then calls of all kinds, more of them than there are
    threads."""
    failures = []
    for action in ("read secret", "make private", "look inside", "access secret", "make"):
        for turn in range(20):
            try:
                if turn == 0:
                    fresh.check(Step("root", version, "make", 1001, 1001))
                fresh.check(Step("root", version, action, uid, gid))
            except AssertionError as failure:
                failures.append(str(failure).partition("\n")[0])
            except TimeoutError:
                failures.append(f"{version} {action}: no answer")
                break
    assert not failures, "\n".join(sorted(set(failures)))


@pytest.mark.parametrize("field", ["uid", "gid"])
def test_no_file_is_given_to_nobody(fresh: Running, field: str) -> None:
    """To the kernel the id means "leave the owner as it is": OK would be a lie."""
    served = fresh.served
    handles, tcp = served.handles["none"], served.tcp
    path = served.base / "none" / "secret"

    async def calls() -> None:
        tcp.credential = auth_sys(0, 0)
        wanted = attributes(**{field: NOBODY})
        for _ in range(3):
            done = await tcp.nfs("SETATTR", SETATTR3args(handles["secret"], wanted, None))
            assert done.status == nfsstat3.NFS3ERR_INVAL
        how = createhow3(createmode3.UNCHECKED, obj_attributes=wanted)
        done = await tcp.nfs("CREATE", CREATE3args(diropargs3(handles["open"], b"new"), how))
        assert done.status == nfsstat3.NFS3ERR_INVAL
        attribute = p.FATTR4_OWNER if field == "uid" else p.FATTR4_OWNER_GROUP
        owner = Encoder()
        owner.opaque(b"4294967295")
        setting = p.SETATTR4args(_ZEROS, p.fattr4(words_of(1 << attribute), owner.getvalue()))
        acl = Encoder()
        acl.uint32(1)
        for word in (0, 0x40 if field == "gid" else 0, 1):
            acl.uint32(word)
        acl.opaque(b"4294967295")
        granting = p.SETATTR4args(_ZEROS, p.fattr4(words_of(1 << p.FATTR4_ACL), acl.getvalue()))
        for client in served.clients.values():
            client.credential = (0, 0, ())
            at = (p.OP_PUTFH, p.PUTFH4args(handles["secret"].data))
            for arguments in (setting, granting):
                assert await client.status(at, (p.OP_SETATTR, arguments)) == p.NFS4ERR_BADOWNER

    fresh.runner.run(calls())
    assert (path.stat().st_uid, path.stat().st_gid) == (0, 0)
    assert not (served.base / "none" / "open" / "new").exists()


@pytest.mark.parametrize("procedure", [0, 1])
def test_a_server_without_tls_says_so(fresh: Running, procedure: int) -> None:
    """RFC 9289 section 4.1: only an accepted reply whose verifier says STARTTLS invites to a handshake."""

    async def calls() -> None:
        tcp = fresh.served.tcp
        tcp.credential = opaque_auth(7, b"")
        reply = await tcp.exchange(tcp.encode(NFS_PROGRAM, 3, procedure, b"", 5))
        assert reply == struct.pack(">5I", 5, 1, 1, 1, auth_stat.AUTH_BADCRED)

    fresh.runner.run(calls())
    fresh.check(Step("root", 30, "make", 1001, 1001))


ids = st.one_of(st.sampled_from(EDGES), st.integers(0, 0xFFFFFFFF))
steps = st.builds(
    Step,
    st.sampled_from(SQUASHES),
    st.sampled_from(VERSIONS),
    st.sampled_from(ACTIONS),
    ids,
    ids,
    st.one_of(
        st.lists(ids, max_size=16).map(tuple),
        # As many as AUTH_SYS carries, some of them twice.
        st.lists(st.sampled_from(EDGES), min_size=15, max_size=16).map(tuple),
    ),
    st.sampled_from(SHARED),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=1, max_size=12))
def test_every_caller_is_who_the_export_says(running: Running, sequence: list[Step]) -> None:
    running.check(*sequence)


def test_callers_of_every_way_are_tried(running: Running) -> None:
    """Some calls are answered natively, some by the general path: on workers, or at once for files in memory."""
    for version in VERSIONS:
        for action in ACTIONS:
            for caller in (0, 1001, NOBODY, 0, 1001, NOBODY):
                running.check(Step("none", version, action, caller, 1, (), 1))
    rows = running.served.daemon.dispatchers["nfs"].rows
    create, others = rows[NFS_PROGRAM, 3, 8], [rows[NFS_PROGRAM, 3, number] for number in (3, 4, 6)]
    others.append(rows[NFS_PROGRAM, 4, 1])
    assert all(row.native_calls > 0 for row in others)
    assert all(row.calls > row.native_calls for row in others[3:])
    memory = running.served.base.is_relative_to("/dev/shm")
    assert create.native_calls > 0
    statistics = running.served.daemon.service.executor.statistics()
    assert memory or statistics["completed"] > 100
    assert statistics["credential_switches"] > 100
