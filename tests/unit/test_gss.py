"""Calls under RPCSEC_GSS, with a real KDC: our client and our server, over every transport."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from rpcrdma.client import Connection
from tests.peer.echo import ECHO, ONCE, PROGRAM, VERSION
from tests.support import kdc
from tests.unit.client_support import arguments, pattern, results, until
from tests.unit.gss_support import NAME, SERVICE, WHO, over, realm

CARRIERS = ("tcp", "rdma1", "rdma2")
SECURITIES = ("krb5", "krb5i", "krb5p")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kdc.Realm]:
    with realm(tmp_path_factory.mktemp("realm")) as made:
        yield made


async def who(connection: Connection) -> str:
    reply = await connection.call(WHO, 1, 1)
    return bytes(reply.decode(NAME)).decode()


async def echo(connection: Connection, item: bytes, procedure: int = ECHO) -> bytearray:
    into = bytearray(len(item))
    reply = await connection.call(PROGRAM, VERSION, procedure, arguments(item), into=memoryview(into), reply_max=128)
    assert results(reply) == [item]
    return into


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("security", SECURITIES)
def test_calls_of_all_sizes_are_secured_on_every_transport(example: kdc.Realm, carrier: str, security: str) -> None:
    async def main() -> None:
        async with over(carrier, example, security) as (connection, made, control):
            assert await who(connection) == f"alice@EXAMPLE.ORG {security} 1001 40"
            for size in (0, 1, 3, 100, 4096, 40_001, 1 << 20):
                item = pattern(size)
                assert await echo(connection, item) == item
            await asyncio.gather(*(echo(connection, pattern(70_000, n)) for n in range(8)))
            assert (made.counts["established"], len(made.table)) == (1, 1)
            assert control.executed == 15
        assert (made.counts["destroyed"], len(made.table)) == (1, 0)

    asyncio.run(main())


@pytest.mark.parametrize("security", SECURITIES)
def test_data_is_placed_directly_unless_it_is_protected_as_a_whole(example: kdc.Realm, security: str) -> None:
    async def main() -> None:
        async with over("rdma1", example, security) as (connection, _, _):
            into = bytearray(50_000)
            item = pattern(50_000)
            reply = await connection.call(PROGRAM, VERSION, ECHO, arguments(item), into=memoryview(into), reply_max=128)
            assert results(reply) == [item]
            assert reply.placed == [50_000 if security == "krb5" else 0]

    asyncio.run(main())


@pytest.mark.parametrize("security", SECURITIES)
def test_a_context_that_the_server_has_forgotten_is_made_anew(example: kdc.Realm, security: str) -> None:
    async def main() -> None:
        async with over("tcp", example, security) as (connection, made, control):
            await echo(connection, b"one")
            for context in made.table:
                made.table.remove(context)
            await echo(connection, b"another")
            assert (made.counts["established"], made.counts["refused_no_context"]) == (2, 1)
            (context,) = made.table
            context.expires = 0.0
            await echo(connection, b"a third")
            assert made.counts["established"] == 3
            assert control.executed == 3

    asyncio.run(main())


@pytest.mark.parametrize("security", SECURITIES)
def test_a_retransmission_is_answered_from_the_replay_cache_though_its_sequence_number_is_new(
    example: kdc.Realm, security: str
) -> None:
    async def main() -> None:
        async with over("tcp", example, security) as (connection, _, control):
            await echo(connection, b"before")
            control.gate = asyncio.Event()
            call = asyncio.ensure_future(echo(connection, b"once", ONCE))
            await until(lambda: control.running)
            carrier = connection.carrier
            assert carrier is not None
            carrier.close(abort=True)
            await until(lambda: connection.retransmissions)
            control.gate.set()
            assert await call == b"once"
            assert control.executed == 2

    asyncio.run(main())


def test_another_user_is_another_principal_and_one_without_a_ticket_is_nobody(
    example: kdc.Realm, tmp_path: Path
) -> None:
    async def main() -> None:
        with mock.patch.dict(os.environ, example.ticket("bob")):
            async with over("tcp", example, "krb5") as (connection, _, _):
                assert await who(connection) == "bob@EXAMPLE.ORG krb5 None 0"
        with mock.patch.dict(os.environ, {"KRB5CCNAME": f"FILE:{tmp_path}/none"}):
            async with over("tcp", example, "krb5") as (connection, made, _):
                with pytest.raises(PermissionError, match=SERVICE):
                    await who(connection)
                assert not made.table

    asyncio.run(main())


def test_a_keytab_that_changes_is_read_again(example: kdc.Realm) -> None:
    async def main() -> None:
        async with over("tcp", example, "krb5") as (connection, made, _):
            await who(connection)
            example.rotate("nfs/localhost", example.directory / "keytab")
            with mock.patch.dict(os.environ, example.ticket("alice")):
                for context in made.table:
                    made.table.remove(context)
                assert await who(connection) == "alice@EXAMPLE.ORG krb5 1001 40"
            assert made.counts["established"] == 2

    asyncio.run(main())


def test_the_mapper_is_asked_again_when_its_answer_is_old(example: kdc.Realm) -> None:
    async def main() -> None:
        with mock.patch.dict(os.environ, example.ticket("alice")):
            await asked()

    async def asked() -> None:
        async with over("tcp", example, "krb5", limits={"identity_age": 0.0}) as (connection, made, _):
            with mock.patch.dict("tests.unit.gss_support.USERS", clear=True):
                await who(connection)
                await until(lambda: next(iter(made.table)).identity is None)
            async with asyncio.timeout(20):
                while not (await who(connection)).endswith(" 1001 40"):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize("failing", [False, True])
def test_the_mapper_is_asked_again_soon_about_nobody(example: kdc.Realm, failing: bool) -> None:
    """A name service that fails says that there is nobody, or nothing: this is no answer for ten minutes."""

    async def main() -> None:
        limits = {"identity_age": 600.0, "nobody_age": 0.0}
        with mock.patch.dict(os.environ, example.ticket("alice")):
            async with over("tcp", example, "krb5", limits=limits) as (connection, made, _):
                with mock.patch.dict("tests.unit.gss_support.USERS", clear=True):
                    assert (await who(connection)).endswith(" None 0")
                    if failing:
                        asking, failed = made.identities, mock.Mock(side_effect=OSError("late"))
                        mapper, asking.mapper = asking.mapper, failed
                        async with asyncio.timeout(20):
                            while not failed.called:
                                await who(connection)
                        await until(lambda: not asking._asked)
                        asking.mapper = mapper
                async with asyncio.timeout(20):
                    while not (await who(connection)).endswith(" 1001 40"):
                        pass
                (context,) = made.table
                assert context.known_until > time.monotonic() + 300

    asyncio.run(main())
