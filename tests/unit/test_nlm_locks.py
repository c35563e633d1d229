"""NFSv3's lock manager over TCP: locks of its own clients, of NFSv4's and of local processes keep each other out."""

from __future__ import annotations

import asyncio
import fcntl
import random
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from nfsd.protocol import nfs4 as p
from nfsd.protocol import nlm4 as n
from nfsd.state import Limits
from nfsd.state.records import Delegation
from nfsd.state.waiters import Waiter
from nfsd.vfs.types import Time
from rpcrdma.client.messages import auth_sys
from rpcrdma.xdr import pack
from tests.support.delegations import until
from tests.support.nfs4 import Client4
from tests.support.nlm import BLOCKED, DENIED, GRACE, GRANTED, Host, NlmServer, locking_server
from tests.unit.test_v4_locks import locking, probing, there, unlocking

MAX = 2**64 - 1
F_OFD_SETLK = 37
ALL_BUT_ONE = 2**64 - 2
NOLOCKS, FBIG, FAILED = n.nlm4_stats.NLM4_DENIED_NOLOCKS, n.nlm4_stats.NLM4_FBIG, n.nlm4_stats.NLM4_FAILED


def run(tmp_path: Path, test: Callable[[NlmServer, Host, Host, Client4], Awaitable[None]], **how: Any) -> None:
    """Run with two hosts and an NFSv4 client, all of which know the file ``f``."""

    async def main() -> None:
        async with asyncio.timeout(60), locking_server(tmp_path, **how) as server:
            one, two = server.host(2), server.host(3)
            client = await Client4(server.parts, 1).connect()
            _, handle = await client.open("/0", b"f", access=1, owner=b"finder")
            one.handle = two.handle = handle
            await test(server, one, two, client)

    asyncio.run(main())


def engine_is_empty(server: NlmServer) -> bool:
    engine = server.parts.engine
    return all(not client.states and not client.locks for client in engine.nlm.all()) and not any(
        file.waiters for file in engine._dirty_files
    )


def lock_locally(file: Any, start: int, length: int) -> None:
    """Lock a range for an open file description, as one of another process: whoever closes another one of this process
    keeps its hands off it."""
    fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, start, length, 0))


def free_locally(tmp_path: Path, start: int = 0, length: int = 1) -> bool:
    """Could a local process lock this?"""
    with (tmp_path / "export" / "f").open("rb+") as file:
        try:
            lock_locally(file, start, length)
        except BlockingIOError:
            return False
        return True


def test_two_hosts_exclude_each_other_and_are_told_by_whom(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, _: Client4) -> None:
        assert await one.lock(10, 20, svid=77) == GRANTED
        assert await one.lock(10, 20, svid=77) == GRANTED, "a retransmission"
        assert await two.lock(29, 5) == DENIED
        assert await two.lock(30, 5) == GRANTED
        assert await two.test(0, 11) == n.nlm4_holder(True, 77, b"77@host-2", 10, 20)
        assert await two.test(0, 10) is None
        assert await one.test(10, 20, svid=77) is None
        assert await one.test(10, 20, svid=78) == n.nlm4_holder(True, 77, b"77@host-2", 10, 20), "another process"
        # A part becomes shared, another free.
        assert await one.lock(10, 5, svid=77, shared=True) == GRANTED
        assert await two.lock(10, 5, shared=True) == GRANTED
        assert await one.unlock(15, 15, svid=77) == GRANTED
        assert await two.lock(15, 15) == GRANTED
        assert await two.test(10, 5) == n.nlm4_holder(False, 77, b"77@host-2", 10, 5)
        for host, svid in ((one, 77), (two, 1), (two, 99)):
            assert await host.unlock(svid=svid) == GRANTED, "of nothing, too"
        assert engine_is_empty(server)
        assert free_locally(tmp_path, 0, 0)

    run(tmp_path, test)


def test_nfsv4_and_local_processes_are_kept_out_and_keep_out(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        stateid, handle = await client.open("/0", b"f", access=3)
        assert await one.lock(0, 10) == GRANTED
        assert await client.status(there(handle), locking(client, stateid, 5, 10)) == p.NFS4ERR_DENIED
        assert await client.status(there(handle), probing(client, 5, 10)) == p.NFS4ERR_DENIED
        assert not free_locally(tmp_path, 9)
        assert free_locally(tmp_path, 10)
        assert await one.unlock(0, 10) == GRANTED
        (locked,) = await client.on(handle, locking(client, stateid, 5, 10))
        assert await one.lock(0, 6) == DENIED
        found = await one.test(0, 6)
        assert found is not None
        assert (found.exclusive, found.svid, found.l_offset, found.l_len) == (True, 0, 5, 10)
        await client.on(handle, unlocking(locked.resok4.lock_stateid, 1))
        with (tmp_path / "export" / "f").open("rb+") as file:
            lock_locally(file, 100, 10)
            assert await one.lock(105, 1) == DENIED
            found = await one.test(0, 0)
            assert found is not None
            assert (found.l_offset, found.l_len) == (100, 10)
        assert await one.lock(105, 1) == GRANTED
        await client.close(stateid, handle)

    run(tmp_path, test)


def test_who_waits_is_called_when_its_turn_comes(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        two.take_calls()
        third = server.host(4).take_calls()
        third.handle = one.handle
        assert await one.lock(0, 100) == GRANTED
        assert await two.lock(0, 50, block=True) == BLOCKED
        assert await two.lock(0, 50, block=True) == BLOCKED, "it asks again, and keeps its place"
        assert await third.lock(0, 10, block=True) == BLOCKED
        assert await one.unlock(50, 50) == GRANTED
        assert two.grants.empty()
        assert await one.unlock() == GRANTED
        assert await two.granted() == two.what(0, 50)
        assert await one.lock(0, 10) == DENIED, "it is the other's now"
        assert await two.lock(0, 50, block=True) == GRANTED, "asked for again before the answer is there"
        assert third.grants.empty()
        assert await two.unlock() == GRANTED
        assert await third.granted() == third.what(0, 10)
        assert await third.unlock() == GRANTED
        assert engine_is_empty(server)

    run(tmp_path, test)


@pytest.mark.parametrize("late", [False, True], ids=["before its turn", "while its turn is taken"])
def test_who_waits_keeps_its_place_while_another_servers_clients_reclaim(tmp_path: Path, late: bool) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        two.take_calls()
        engine = server.parts.engine
        assert await one.lock() == GRANTED
        assert await two.lock(block=True) == BLOCKED
        if late:  # the waiter has been told of, and takes its lock a moment later
            notices = engine.locks.waits.notices

            def told() -> list[Waiter]:
                found = notices()
                engine.grace.elsewhere |= bool(found)
                return found

            engine.locks.waits.notices = told  # type: ignore[method-assign]
        else:
            engine.grace.elsewhere = True
        assert await one.unlock() == GRANTED
        assert await one.lock(1, 1) == GRACE
        for _ in range(50):
            await asyncio.sleep(0)
        assert two.grants.empty()
        if late:
            engine.locks.waits.notices = notices  # type: ignore[method-assign]
        engine.grace.elsewhere = False
        assert await two.granted() == two.what(0, 0)
        assert await two.unlock() == GRANTED

    run(tmp_path, test)


def test_nfsv4_and_local_processes_that_let_go_wake_who_waits(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        one.take_calls()
        stateid, handle = await client.open("/0", b"f", access=3)
        (locked,) = await client.on(handle, locking(client, stateid))
        assert await one.lock(block=True) == BLOCKED
        await client.on(handle, unlocking(locked.resok4.lock_stateid, 1))
        assert (await one.granted()).l_len == 0
        assert await one.unlock() == GRANTED
        with (tmp_path / "export" / "f").open("rb+") as file:
            lock_locally(file, 0, 10)
            assert await one.lock(5, 1, block=True) == BLOCKED
        assert (await one.granted()).l_offset == 5  # the server looks once a second

    run(tmp_path, test)


@pytest.mark.parametrize("how", ["refuses", "is silent", "is not there", "is in a grace period"])
def test_who_does_not_take_the_lock_loses_its_turn(tmp_path: Path, how: str) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        if how == "is silent":
            server.peers._patience = 1
        third = server.host(4).take_calls()
        third.handle = one.handle
        if how != "is not there":
            two.take_calls()
            two.verdict = {"refuses": DENIED, "is silent": None, "is in a grace period": GRACE}[how]
        assert await one.lock() == GRANTED
        assert await two.lock(block=True) == BLOCKED
        assert await third.lock(block=True) == BLOCKED
        assert await one.unlock() == GRANTED
        await third.granted()
        if how == "is in a grace period":
            assert two.grants.qsize() == 3, "it was tried several times"
        assert await two.lock() == DENIED

    run(tmp_path, test)


def test_a_host_that_is_silent_keeps_no_other_from_being_called(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        server.peers._patience = 50
        two.take_calls().verdict = None
        third = server.host(4).take_calls()
        third.handle = one.handle
        assert await one.lock() == GRANTED
        for number in range(200):
            assert await two.lock(2 * number, 1, block=True) == BLOCKED
        assert await third.lock(1000, 1, block=True) == BLOCKED
        assert await one.unlock() == GRANTED
        assert (await third.granted()).l_offset == 1000
        assert two.grants.qsize() <= 8

    run(tmp_path, test)


def test_a_cancelled_wait_is_over_and_a_lock_just_given_is_taken_back(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        two.take_calls()
        assert await one.lock() == GRANTED
        assert await two.lock(block=True) == BLOCKED
        assert await two.cancel() == GRANTED
        assert await two.cancel() == DENIED, "there is nothing to cancel any more"
        assert await one.unlock() == GRANTED
        assert await one.lock() == GRANTED
        assert two.grants.empty()
        # Its turn has come, and it does not know.
        two.verdict = None
        assert await two.lock(block=True) == BLOCKED
        assert await one.unlock() == GRANTED
        await two.granted()
        assert await one.lock() == DENIED
        assert await two.cancel() == GRANTED
        assert await one.lock() == GRANTED

    run(tmp_path, test)


def test_messages_are_answered_by_calls(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        async def sent(procedure: int, arguments: Any) -> tuple[int, Any]:
            await one.call(procedure, arguments, None)
            return await asyncio.wait_for(one.answers.get(), 20)

        what = one.what(0, 10)
        lock = n.nlm4_lockargs, n.nlm4_lockargs(b"1", True, True, what, False, one.state)
        await one.call(n.NLMPROC4_LOCK_MSG, lock, None)  # nobody is there to take the answer
        assert await one.unlock() == GRANTED
        one.take_calls()
        assert await two.lock(0, 10) == GRANTED
        assert await sent(n.NLMPROC4_LOCK_MSG, lock) == (n.NLMPROC4_LOCK_RES, n.nlm4_res(b"1", BLOCKED))
        number, tested = await sent(n.NLMPROC4_TEST_MSG, (n.nlm4_testargs, n.nlm4_testargs(b"2", True, what)))
        assert (number, tested.cookie, tested.stat.holder.oh) == (n.NLMPROC4_TEST_RES, b"2", b"1@host-3")
        assert await two.unlock() == GRANTED
        assert await one.granted() == what
        unlock = n.nlm4_unlockargs, n.nlm4_unlockargs(b"3", what)
        assert await sent(n.NLMPROC4_UNLOCK_MSG, unlock) == (n.NLMPROC4_UNLOCK_RES, n.nlm4_res(b"3", GRANTED))
        cancel = n.nlm4_cancargs, n.nlm4_cancargs(b"4", True, True, what)
        assert await sent(n.NLMPROC4_CANCEL_MSG, cancel) == (n.NLMPROC4_CANCEL_RES, n.nlm4_res(b"4", DENIED))

    run(tmp_path, test)


def test_a_deadlock_is_told_at_once(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        one.take_calls()
        assert await one.lock(0, 10) == GRANTED
        assert await two.lock(10, 10) == GRANTED
        assert await one.lock(10, 10, block=True) == BLOCKED
        assert await two.lock(0, 10, block=True) == n.nlm4_stats.NLM4_DEADLCK
        assert await two.unlock() == GRANTED
        assert (await one.granted()).l_offset == 10

    run(tmp_path, test)


def test_delegations_are_not_given_against_a_lock(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        engine = server.parts.engine
        file = engine.opens.file((await server.parts.service.resolve(one.handle)).key)
        assert file is not None
        (v4,) = [c for c in engine.clients.all() if c.minor]
        assert engine.delegations.refusal(v4, file.key, write=True) is None
        assert await one.lock(shared=True) == GRANTED
        assert engine.delegations.refusal(v4, file.key, write=False) is None, "both read"
        assert engine.delegations.refusal(v4, file.key, write=True) is not None
        assert await one.unlock() == GRANTED
        assert engine.delegations.refusal(v4, file.key, write=True) is None
        # One that is there is called back first; it does not come back here, so there is no answer.
        given = engine.delegations.offer(v4, file.key, write=True)
        assert isinstance(given, Delegation)
        engine.delegations.settle(given)
        asked = asyncio.ensure_future(one.lock())
        await until(lambda: engine.delegations.recalled)
        assert not asked.done()
        engine.delegations.release(given)
        assert await asked == GRANTED

    run(tmp_path, test, limits=Limits(grace=0))


def test_what_is_no_range_and_what_is_no_file(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        assert await one.lock(MAX, 2) == FBIG
        assert await one.lock(9, ALL_BUT_ONE) == FBIG
        assert await one.lock(MAX, 1) == GRANTED
        assert await one.lock(5, MAX) == GRANTED
        *_, root = await client.run(*client.path("/0"), p.OP_GETFH)
        assert await one.lock(handle=root.resok4.object) == FAILED, "a directory"
        for handle in (b"", b"x" * 64, b"y" * 1024):
            assert await one.lock(handle=handle) == n.nlm4_stats.NLM4_STALE_FH
        (tmp_path / "export" / "f").unlink()
        assert await one.unlock() == GRANTED
        assert engine_is_empty(server)

    run(tmp_path, test)


def test_permission_is_that_of_fcntl_and_owners_have_it(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        file = tmp_path / "export" / "f"
        file.chmod(0o444)
        one.credential = auth_sys(4321, 4321)
        assert await one.lock(shared=True) == GRANTED
        assert await one.lock() == FAILED
        file.chmod(0o000)
        assert await one.lock(shared=True) == FAILED
        assert await one.unlock() == GRANTED
        one.credential = auth_sys(file.stat().st_uid, 4321)
        assert await one.lock() == GRANTED

    run(tmp_path, test)


def test_the_exports_rules_hold(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        assert await one.lock(shared=True) == FAILED, "not a client of the export"
        assert await two.lock(shared=True) == GRANTED
        assert await two.lock() == n.nlm4_stats.NLM4_ROFS

    run(tmp_path, test, clients=("127.0.0.1", "127.0.0.3"), read_only=True)


def test_limits_are_those_of_nfsv4_clients(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        for number in range(3):
            assert await one.lock(number * 10, 5) == GRANTED
        assert await one.lock(100, 5) == NOLOCKS
        assert await two.lock(100, 5) == GRANTED
        assert await two.lock(0, 5, block=True) == BLOCKED
        assert await two.lock(10, 5, block=True) == NOLOCKS
        third = server.host(4)
        third.handle = one.handle
        assert await third.lock(200, 5) == NOLOCKS, "one client too many"
        assert await one.unlock() == GRANTED
        assert await third.lock(200, 5) == GRANTED, "one that holds nothing gives way"

    run(tmp_path, test, limits=Limits(grace=0, delegations=0, locks=3, client_waiters=1, clients=2))


def test_dos_reservations_exclude_each_other_and_nfsv4s(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        assert await one.share(1, 2) == GRANTED  # reads, denies to write
        assert await two.share(2, 0) == DENIED
        assert await two.share(1, 0) == GRANTED
        assert await one.share(3, 1) == DENIED, "the other reads"
        assert await two.share(2, 0) == DENIED, "and what one has is kept when a change is refused"
        assert await client.status(*client.path("/0"), (p.OP_OPEN, client.open_args(b"f", access=2))) != p.NFS4_OK
        assert await one.share(0, 0, undo=True) == GRANTED
        assert await one.share(0, 0, undo=True) == GRANTED, "of nothing, too"
        assert await two.share(2, 0) == GRANTED
        assert await one.share(0, 2) == FAILED, "access to nothing"
        assert await one.share(1, 9) == FAILED
        assert await two.share(0, 0, undo=True) == GRANTED
        assert engine_is_empty(server)

    run(tmp_path, test)


def test_free_all_frees_the_callers_own(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        assert await one.lock(0, 10, procedure=n.NLMPROC4_NM_LOCK) == GRANTED
        assert await two.lock(10, 10) == GRANTED
        two.name, name = one.name, two.name
        await two.free_all()
        assert not free_locally(tmp_path, 0), "the name is not enough"
        two.name = name
        await one.free_all()
        assert free_locally(tmp_path, 0)
        assert not free_locally(tmp_path, 10)

    run(tmp_path, test)


def test_files_exported_no_more_are_let_go_of(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        assert await one.lock(0, 10) == GRANTED
        assert await one.share(1, 0) == GRANTED
        assert await two.lock(0, 10, block=True) == BLOCKED
        assert server.parts.nfs4.exports_changed({1}, Time(1, 0))
        assert engine_is_empty(server)

    run(tmp_path, test)


def test_arguments_that_are_none_cost_the_call(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        right = pack(n.nlm4_lockargs, n.nlm4_lockargs(b"c", False, True, one.what(0, 1), False, 1))
        rng = random.Random(8)
        for number in range(300):
            octets = bytearray(right[: rng.randrange(len(right) + 1)] if number % 2 else right)
            for _ in range(rng.randrange(4)):
                if octets:
                    octets[rng.randrange(len(octets))] = rng.choice((0, 1, 0xFF, rng.randrange(256)))
            procedure = rng.choice([*range(1, 10), *range(20, 24)])
            reply = bytes(await one.raw(procedure, bytes(octets)))
            assert int.from_bytes(reply[20:24], "big") in (0, 4), "done, or GARBAGE_ARGS"
        await one.free_all()
        assert await one.lock(5, 1) == GRANTED

    run(tmp_path, test)


def test_random_histories_agree_with_a_model_of_octets(tmp_path: Path) -> None:
    """Every octet of a small file, and who holds it: the plainest description of POSIX locks there is."""

    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        rng = random.Random(3)
        held: list[dict[tuple[int, int], bool]] = [{} for _ in range(12)]
        hosts = (one, two)
        for _ in range(400):
            number, svid = rng.randrange(2), rng.randrange(2)
            owner, host = (number, svid), hosts[number]
            start = rng.randrange(11)
            length = rng.randrange(1, 12 - start)
            octets, exclusive = range(start, start + length), rng.random() < 0.5
            if rng.random() < 0.4:
                assert await host.unlock(start, length, svid=svid) == GRANTED
                for octet in octets:
                    held[octet].pop(owner, None)
                continue
            free = not any(
                other != owner and (exclusive or kind) for octet in octets for other, kind in held[octet].items()
            )
            found = await host.test(start, length, svid=svid, shared=not exclusive)
            assert (found is None) == free
            verdict = await host.lock(start, length, svid=svid, shared=not exclusive)
            assert verdict == (GRANTED if free else DENIED)
            if free:
                for octet in octets:
                    held[octet][owner] = exclusive
        for number, svid in ((0, 0), (0, 1), (1, 0), (1, 1)):
            assert await hosts[number].unlock(svid=svid) == GRANTED
        assert engine_is_empty(server)
        assert free_locally(tmp_path, 0, 0)

    run(tmp_path, test)


def test_every_granted_lock_has_a_cookie_of_its_own(tmp_path: Path) -> None:
    async def test(server: NlmServer, one: Host, two: Host, client: Client4) -> None:
        two.take_calls()
        cookies = set()
        for start in range(0, 30, 10):
            assert await one.lock(start, 5) == GRANTED
            assert await two.lock(start, 5, block=True) == BLOCKED
            assert await one.unlock(start, 5) == GRANTED
            cookies.add((await asyncio.wait_for(two.grants.get(), 20)).cookie)
        assert len(cookies) == 3

    run(tmp_path, test)
