"""Whose state is whose when callers are known by Kerberos: a real KDC, a daemon, COMPOUNDs of several principals."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nfsd.client import compound
from nfsd.protocol import nfs4 as p
from nfsd.v4.attributes import mask_of, words_of
from rpcrdma.client import ClientOptions, Connection, Gss, connect
from rpcrdma.xdr import Encoder
from tests.support import kdc
from tests.unit.test_kerberos import ANN, Site, run
from tests.unit.test_kerberos_trouble import realm as realm  # a fixture

pytestmark = [
    pytest.mark.skipif(not kdc.PRESENT, reason=kdc.WITHOUT_KDC),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as other users"),
]
NFS = 100003
MACHINE, OTHER = "host/client.example.org", "host/other.example.org"
LINUX_ENFORCES = (
    1 << p.OP_BIND_CONN_TO_SESSION
    | 1 << p.OP_EXCHANGE_ID
    | 1 << p.OP_CREATE_SESSION
    | 1 << p.OP_DESTROY_SESSION
    | 1 << p.OP_DESTROY_CLIENTID
)
LINUX_ALLOWS = sum(
    1 << number
    for number in (
        p.OP_CLOSE, p.OP_OPEN_DOWNGRADE, p.OP_LOCKU, p.OP_DELEGRETURN, p.OP_COMMIT, p.OP_SECINFO,
        p.OP_SECINFO_NO_NAME, p.OP_LAYOUTRETURN, p.OP_TEST_STATEID, p.OP_FREE_STATEID, p.OP_WRITE,
    )
)  # fmt: skip
GRANTED = sum(
    1 << number
    for number in (
        p.OP_CLOSE, p.OP_OPEN_DOWNGRADE, p.OP_LOCKU, p.OP_DELEGRETURN, p.OP_COMMIT, p.OP_TEST_STATEID,
        p.OP_FREE_STATEID,
    )
)  # fmt: skip
CHANNEL = p.channel_attrs4(0, 1 << 16, 1 << 16, 4096, 8, 4, [])
EITHER = p.channel_dir_from_client4.CDFC4_FORE_OR_BOTH


@asynccontextmanager
async def caller(site: Site, name: str | None, security: Any = "krb5i") -> AsyncIterator[Connection]:
    """A connection whose calls are a principal's; None: nobody's."""
    gss = None if name is None else Gss(security, "nfs@localhost", site.cache(name))
    port = site.server.port("nfs", "tcp")
    async with connect("127.0.0.1", port, transport="tcp", options=ClientOptions(gss=gss)) as connection:
        yield connection


async def ask(connection: Connection, *operations: compound.Op) -> tuple[int, Any]:
    """A COMPOUND's status, and its last result."""
    encoder = Encoder()
    compound.encode(encoder, operations)
    reply = await connection.call(NFS, 4, 1, encoder, reply_max=4096)
    done = compound.decode(reply.decoder(), operations)
    return done.status, done.results[-1]


def exchange_id(
    *, enforce: int = LINUX_ENFORCES, flags: int = 0, protect: bool = True, owner: bytes = b"a client"
) -> compound.Op:
    asked = p.state_protect4_a(p.state_protect_how4.SP4_NONE)
    if protect:
        operations = p.state_protect_ops4(words_of(enforce), words_of(LINUX_ALLOWS))
        asked = p.state_protect4_a(p.state_protect_how4.SP4_MACH_CRED, spa_mach_ops=operations)
    return p.OP_EXCHANGE_ID, p.EXCHANGE_ID4args(p.client_owner4(b"verifier", owner), flags, asked, [])


def create_session(clientid: int, sequenceid: int) -> compound.Op:
    security = [p.callback_sec_parms4(0)]
    return p.OP_CREATE_SESSION, p.CREATE_SESSION4args(clientid, sequenceid, 0, CHANNEL, CHANNEL, 1 << 30, security)


def sequence(sessionid: bytes, number: int) -> compound.Op:
    return p.OP_SEQUENCE, p.SEQUENCE4args(sessionid, number, 0, 0, False)


def bind(sessionid: bytes) -> compound.Op:
    return p.OP_BIND_CONN_TO_SESSION, p.BIND_CONN_TO_SESSION4args(sessionid, EITHER, False)


def test_what_linux_asks_for_is_granted_and_protects_its_state(tmp_path: Path, realm: kdc.Realm) -> None:
    async def test(site: Site) -> None:
        async with caller(site, MACHINE) as machine, caller(site, OTHER) as other, caller(site, MACHINE) as again:
            status, made = await ask(machine, exchange_id())
            assert status == p.NFS4_OK
            protection = made.eir_resok4.eir_state_protect
            assert protection.spr_how == p.state_protect_how4.SP4_MACH_CRED
            assert mask_of(protection.spr_mach_ops.spo_must_enforce) == LINUX_ENFORCES
            assert mask_of(protection.spr_mach_ops.spo_must_allow) == GRANTED
            clientid = made.eir_resok4.eir_clientid
            first = create_session(clientid, made.eir_resok4.eir_sequenceid)
            assert (await ask(other, first))[0] == p.NFS4ERR_CLID_INUSE
            status, session = await ask(machine, first)
            assert status == p.NFS4_OK
            sessionid = session.csr_resok4.csr_sessionid
            assert (await ask(machine, sequence(sessionid, 1)))[0] == p.NFS4_OK

            destroy = p.OP_DESTROY_SESSION, p.DESTROY_SESSION4args(sessionid)
            leave = p.OP_DESTROY_CLIENTID, p.DESTROY_CLIENTID4args(clientid)
            second = create_session(clientid, made.eir_resok4.eir_sequenceid + 1)
            async with caller(site, MACHINE, "krb5") as unsigned, caller(site, None) as nobody:
                for stranger in (other, unsigned, nobody):
                    assert (await ask(stranger, bind(sessionid)))[0] == p.NFS4ERR_WRONG_CRED
                    assert (await ask(stranger, destroy))[0] == p.NFS4ERR_WRONG_CRED
                    assert (await ask(stranger, leave))[0] == p.NFS4ERR_WRONG_CRED
                    assert (await ask(stranger, exchange_id(protect=False)))[0] == p.NFS4ERR_CLID_INUSE
                    refused = (await ask(stranger, second))[0]
                    assert refused == (p.NFS4ERR_WRONG_CRED if stranger is unsigned else p.NFS4ERR_CLID_INUSE)
                    assert (await ask(stranger, sequence(sessionid, 2)))[0] == p.NFS4ERR_CONN_NOT_BOUND_TO_SESSION
                for weak in (unsigned, nobody):
                    assert (await ask(weak, exchange_id()))[0] == p.NFS4ERR_INVAL

            # Another connection of its own must be bound.
            assert (await ask(again, sequence(sessionid, 2)))[0] == p.NFS4ERR_CONN_NOT_BOUND_TO_SESSION
            assert (await ask(again, bind(sessionid)))[0] == p.NFS4_OK
            assert (await ask(again, sequence(sessionid, 2)))[0] == p.NFS4_OK
            assert (await ask(again, destroy))[0] == p.NFS4_OK
            assert (await ask(machine, leave))[0] == p.NFS4_OK

    run(tmp_path, realm, test)


def test_another_principal_does_not_take_a_client_over(tmp_path: Path, realm: kdc.Realm) -> None:
    """Without protection: by the name of a client that has state."""

    async def test(site: Site) -> None:
        async with caller(site, MACHINE) as machine, caller(site, OTHER) as other, caller(site, None) as nobody:
            asking = exchange_id(protect=False)
            _, made = await ask(machine, asking)
            clientid, sequenceid = made.eir_resok4.eir_clientid, made.eir_resok4.eir_sequenceid
            assert made.eir_resok4.eir_state_protect.spr_how == p.state_protect_how4.SP4_NONE
            for stranger in (other, nobody):
                assert (await ask(stranger, create_session(clientid, sequenceid)))[0] == p.NFS4ERR_CLID_INUSE
            assert (await ask(machine, create_session(clientid, sequenceid)))[0] == p.NFS4_OK
            for stranger in (other, nobody):
                assert (await ask(stranger, asking))[0] == p.NFS4ERR_CLID_INUSE
                update = exchange_id(protect=False, flags=p.EXCHGID4_FLAG_UPD_CONFIRMED_REC_A)
                assert (await ask(stranger, update))[0] == p.NFS4ERR_PERM
                assert (await ask(stranger, create_session(clientid, sequenceid + 1)))[0] == p.NFS4ERR_CLID_INUSE
            assert (await ask(machine, create_session(clientid, sequenceid + 1)))[0] == p.NFS4_OK

    run(tmp_path, realm, test)


FILE = (
    (p.OP_PUTROOTFH, None),
    (p.OP_LOOKUP, p.LOOKUP4args(b"strong")),
    (p.OP_LOOKUP, p.LOOKUP4args(b"file")),
    (p.OP_GETFH, None),
)
GETATTR = p.OP_GETATTR, p.GETATTR4args([1 << p.FATTR4_SIZE])
READING, BOTH, NONE = p.OPEN4_SHARE_ACCESS_READ, p.OPEN4_SHARE_ACCESS_BOTH, p.OPEN4_SHARE_DENY_NONE
ZERO = p.stateid4(0, bytes(12))


class Holder:
    """Sends COMPOUNDs of one session, each on the slot of a caller."""

    def __init__(self, sessionid: bytes) -> None:
        self._sessionid = sessionid
        self._numbers: dict[Connection, int] = {}

    async def ask(self, connection: Connection, *operations: compound.Op) -> tuple[int, Any]:
        slot = list(self._numbers).index(connection) if connection in self._numbers else len(self._numbers)
        number = self._numbers[connection] = self._numbers.get(connection, 0) + 1
        first = p.OP_SEQUENCE, p.SEQUENCE4args(self._sessionid, number, slot, slot, False)
        return await ask(connection, first, *operations)


async def held(connection: Connection, *, protect: bool, owner: bytes = b"a client") -> Holder:
    """A session of the machine's, whose connections need not be bound."""
    enforce = LINUX_ENFORCES & ~(1 << p.OP_BIND_CONN_TO_SESSION)
    _, made = await ask(connection, exchange_id(enforce=enforce, protect=protect, owner=owner))
    first = create_session(made.eir_resok4.eir_clientid, made.eir_resok4.eir_sequenceid)
    status, session = await ask(connection, first)
    assert status == p.NFS4_OK
    holder = Holder(session.csr_resok4.csr_sessionid)
    assert (await holder.ask(connection, (p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False))))[0] == p.NFS4_OK
    return holder


async def opened(holder: Holder, user: Connection) -> tuple[bytes, p.stateid4, p.stateid4]:
    """What a user opens and locks: the file's handle, and the stateids of both."""
    status, found = await holder.ask(user, *FILE)
    assert status == p.NFS4_OK
    here = p.OP_PUTFH, p.PUTFH4args(found.resok4.object)
    owner = p.open_owner4(0, b"a user")
    claim = p.open_claim4(p.open_claim_type4.CLAIM_FH)
    for access in (READING, BOTH):
        how = p.OPEN4args(0, access, NONE, owner, p.openflag4(p.opentype4.OPEN4_NOCREATE), claim)
        status, made = await holder.ask(user, here, (p.OP_OPEN, how))
        assert status == p.NFS4_OK
    stateid = made.resok4.stateid
    locker = p.locker4(True, open_owner=p.open_to_lock_owner4(0, stateid, 0, p.lock_owner4(0, b"a lock")))
    lock = p.OP_LOCK, p.LOCK4args(p.nfs_lock_type4.WRITE_LT, False, 0, 10, locker)
    status, made = await holder.ask(user, here, lock)
    assert status == p.NFS4_OK
    return found.resok4.object, stateid, made.resok4.lock_stateid


def test_the_machine_gives_up_what_a_user_has_opened(tmp_path: Path, realm: kdc.Realm) -> None:
    """RFC 8881 section 18.35.3, on an export that takes no calls with the machine's flavor: what ends state, and no
    more than that."""

    async def test(site: Site) -> None:
        async with (
            caller(site, MACHINE) as machine, caller(site, MACHINE, "krb5") as unsigned, caller(site, OTHER) as other,
            caller(site, "ann", "krb5p") as user,
        ):  # fmt: skip
            holder = await held(machine, protect=True)
            handle, stateid, locked = await opened(holder, user)
            here = p.OP_PUTFH, p.PUTFH4args(handle)
            close = p.OP_CLOSE, p.CLOSE4args(0, stateid)
            read = p.OP_READ, p.READ4args(ZERO, 0, 10)
            unlock = p.OP_LOCKU, p.LOCKU4args(p.nfs_lock_type4.WRITE_LT, 0, locked, 0, 10)
            for stranger in (unsigned, other):
                for operation in (unlock, close):
                    assert (await holder.ask(stranger, here, operation))[0] == p.NFS4ERR_WRONGSEC
            for others in ((read,), (GETATTR,), (GETATTR, read), (GETATTR, here, read), (unlock, read)):
                assert (await holder.ask(machine, here, *others))[0] == p.NFS4ERR_WRONGSEC
            later = p.stateid4(locked.seqid + 1, locked.other)  # the last of these was unlocked before it was refused
            unlock = p.OP_LOCKU, p.LOCKU4args(p.nfs_lock_type4.WRITE_LT, 0, later, 0, 10)
            status, size = await holder.ask(machine, here, GETATTR, unlock, GETATTR)
            assert status == p.NFS4_OK
            assert size.resok4.obj_attributes.attr_vals == (6).to_bytes(8, "big")
            less = p.OP_OPEN_DOWNGRADE, p.OPEN_DOWNGRADE4args(stateid, 0, READING, NONE)
            status, made = await holder.ask(machine, here, less)
            assert status == p.NFS4_OK
            left = made.resok4.open_stateid
            close = p.OP_CLOSE, p.CLOSE4args(0, left)
            back = p.OP_DELEGRETURN, p.DELEGRETURN4args(left)
            assert (await holder.ask(machine, here, GETATTR, back))[0] == p.NFS4ERR_BAD_STATEID
            for attribute, octets, status in (
                (p.FATTR4_TIME_DELEG_MODIFY, bytes(12), p.NFS4ERR_BAD_STATEID),  # as Linux 6.11 returns one
                (p.FATTR4_MODE, bytes(4), p.NFS4ERR_WRONGSEC),
            ):
                given = p.fattr4(words_of(1 << attribute), octets)
                setting = p.OP_SETATTR, p.SETATTR4args(left, given)
                for behind in ((back,), (GETATTR, back)):
                    assert (await holder.ask(machine, here, setting, *behind))[0] == status
                assert (await holder.ask(machine, here, setting))[0] == p.NFS4ERR_WRONGSEC
            assert (await holder.ask(machine, here, GETATTR, close))[0] == p.NFS4_OK
            assert (await holder.ask(user, here, close))[0] == p.NFS4ERR_BAD_STATEID

    run(tmp_path, realm, test, "[krb5p]")


COMMIT = p.OP_COMMIT, p.COMMIT4args(0, 0)


def written(stateid: p.stateid4) -> compound.Op:
    return p.OP_WRITE, p.WRITE4args(stateid, 0, p.stable_how4.UNSTABLE4, b"data")


@pytest.mark.parametrize("sec", ["[krb5p]", "[krb5p, krb5i]"])
def test_the_machine_commits_what_a_user_writes(tmp_path: Path, realm: kdc.Realm, sec: str) -> None:
    """RFC 8881 section 18.35.3: as long as a user of the client has the file open for writing. It writes nothing."""

    async def test(site: Site) -> None:
        file = tmp_path / "strong/file"
        os.chown(file, ANN.pw_uid, ANN.pw_gid)
        file.chmod(0o600)
        refused = p.NFS4ERR_WRONGSEC if sec == "[krb5p]" else p.NFS4ERR_ACCESS
        async with (
            caller(site, MACHINE) as machine, caller(site, MACHINE, "krb5p") as private, caller(site, OTHER) as other,
            caller(site, OTHER) as neighbour, caller(site, "ann", "krb5p") as user,
        ):  # fmt: skip
            holder = await held(machine, protect=True)
            elsewhere = await held(neighbour, protect=True, owner=b"another")
            handle, stateid, locked = await opened(holder, user)
            here = p.OP_PUTFH, p.PUTFH4args(handle)
            for used in (stateid, locked):
                status, done = await holder.ask(user, here, written(used))
                assert status == p.NFS4_OK
                verifier = done.resok4.writeverf
                status, done = await holder.ask(machine, here, COMMIT)
                assert (status, done.resok4.writeverf) == (p.NFS4_OK, verifier)
                for one in (machine, private):
                    assert (await holder.ask(one, here, written(used)))[0] in (p.NFS4ERR_ACCESS, refused)
            assert file.read_bytes() == b"dataet"
            assert (await holder.ask(other, here, COMMIT))[0] == refused
            assert (await elsewhere.ask(neighbour, here, COMMIT))[0] in (p.NFS4ERR_ACCESS, refused)
            unlock = p.OP_LOCKU, p.LOCKU4args(p.nfs_lock_type4.WRITE_LT, 0, locked, 0, 10)
            assert (await holder.ask(user, here, unlock))[0] == p.NFS4_OK
            less = p.OP_OPEN_DOWNGRADE, p.OPEN_DOWNGRADE4args(stateid, 0, READING, NONE)
            assert (await holder.ask(user, here, less))[0] == p.NFS4_OK
            assert (await holder.ask(machine, here, COMMIT))[0] == p.NFS4ERR_ACCESS
            file.chmod(0o666)  # anybody may commit it, where it is let to the file for more than what its users do
            allowed = p.NFS4ERR_ACCESS if sec == "[krb5p]" else p.NFS4_OK
            assert (await holder.ask(machine, here, COMMIT))[0] == allowed

    run(tmp_path, realm, test, sec)


def test_without_protection_the_machine_gives_nothing_up(tmp_path: Path, realm: kdc.Realm) -> None:
    async def test(site: Site) -> None:
        async with caller(site, MACHINE) as machine, caller(site, "ann", "krb5p") as user:
            holder = await held(machine, protect=False)
            handle, stateid, _ = await opened(holder, user)
            for operation in ((p.OP_CLOSE, p.CLOSE4args(0, stateid)), COMMIT):
                assert (await holder.ask(machine, (p.OP_PUTFH, p.PUTFH4args(handle)), operation))[
                    0
                ] == p.NFS4ERR_WRONGSEC

    run(tmp_path, realm, test, "[krb5p]")
