"""Exports: who sees what, and as whom callers act."""

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nfsd.exports import ClientOverride, Export, ExportTable, canonical_address, derive_id
from nfsd.names import GroupLists, HostNames, look_up_groups
from nfsd.vfs.types import Credential

AUTH_NONE, AUTH_SYS = 0, 1


def export(*clients: str, **settings: Any) -> Export:
    return Export(id=7, path="/srv", pseudo="/srv", clients=clients or ("*",), **settings)


def names(forward: dict[str, set[str]] | None = None, reverse: dict[str, set[str]] | None = None) -> HostNames:
    return HostNames(
        forward=lambda name: frozenset((forward or {}).get(name, ())),
        reverse=lambda address: frozenset((reverse or {}).get(address, ())),
    )


@pytest.mark.parametrize(
    ("clients", "peer", "expected"),
    [
        (["*"], "192.0.2.1", True),
        (["192.0.2.1"], "192.0.2.1", True),
        (["192.0.2.1"], "192.0.2.2", False),
        (["192.0.2.0/24"], "192.0.2.200", True),
        (["192.0.2.0/24"], "192.0.3.1", False),
        (["192.0.2.0/255.255.255.0"], "192.0.2.9", True),
        (["192.0.2.0/24"], "::ffff:192.0.2.9", True),
        (["192.0.2.0/24"], "2001:db8::1", False),
        (["2001:db8::/32"], "2001:db8:1::5", True),
        (["2001:DB8::5"], "2001:db8:0:0::5", True),
        (["fe80::1"], "fe80::1%eth0", True),
        (["192.0.2.1"], "loopback", False),
        (["*"], "loopback", True),
        ([], "192.0.2.1", True),
    ],
)
def test_addresses(clients: list[str], peer: str, expected: bool) -> None:
    e = export(*clients)
    table = ExportTable((e,))
    assert table.visible(e, peer) is expected
    assert table.visible(e, peer) is expected  # from the cache
    assert table.admit(peer) is None


def test_an_export_for_nobody() -> None:
    e = Export(id=1, path="/srv", pseudo="/srv", clients=())
    assert not ExportTable((e,)).visible(e, "127.0.0.1")


def test_the_most_specific_entry_counts_whatever_the_order() -> None:
    e = export(
        "*",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.3",
        read_only=True,
        overrides=(
            ClientOverride("10.0.0.0/8", read_only=False),
            ClientOverride("10.1.0.0/16", read_only=True, squash="all", anonuid=99, anongid=98),
            ClientOverride("10.1.2.3", read_only=False, squash="none"),
        ),
    )
    table = ExportTable((e,))
    assert table.read_only(e, "192.0.2.1")
    assert not table.read_only(e, "10.9.9.9")
    assert table.read_only(e, "10.1.9.9")
    assert not table.read_only(e, "10.1.2.3")

    def acts(peer: str) -> Credential:
        return asyncio.run(table.credential(e, AUTH_SYS, 0, 5, (0, 6), peer))

    assert acts("10.1.9.9") == Credential(99, 98, ())
    assert acts("10.1.2.3") == Credential(0, 5, (0, 6))
    assert acts("10.9.9.9") == Credential(65534, 5, (65534, 6))


def test_a_client_it_is_not_for_is_read_only_and_anonymous() -> None:
    e = export("192.0.2.1", squash="none")
    table = ExportTable((e,))
    assert table.read_only(e, "192.0.2.2")
    assert asyncio.run(table.credential(e, AUTH_SYS, 0, 0, (), "192.0.2.2")) == Credential(65534, 65534)


@pytest.mark.parametrize(
    ("squash", "caller", "expected"),
    [
        ("root", (0, 0, ()), Credential(11, 12)),
        ("root", (0, 100, (0, 5)), Credential(11, 100, (12, 5))),
        ("root", (1000, 0, ()), Credential(1000, 12)),
        ("root", (1000, 100, (5,)), Credential(1000, 100, (5,))),
        ("none", (0, 0, (0,)), Credential(0, 0, (0,))),
        ("all", (1000, 100, (5,)), Credential(11, 12)),
        ("root", (None, 100, (5,)), Credential(11, 100, (5,))),
        ("none", (None, None, ()), Credential(11, 12)),
        ("none", (1000, None, (5,)), Credential(1000, 12, (5,))),
        ("all", (None, None, (5,)), Credential(11, 12)),
    ],
)
def test_squash(squash: str, caller: tuple[int | None, int | None, tuple[int, ...]], expected: Credential) -> None:
    e = export(squash=squash, anonuid=11, anongid=12)
    table = ExportTable((e,))
    assert asyncio.run(table.credential(e, AUTH_SYS, *caller)) == expected


def test_auth_none_is_the_anonymous_user_even_without_squash() -> None:
    e = export(squash="none", anonuid=11, anongid=12)
    assert asyncio.run(ExportTable((e,)).credential(e, AUTH_NONE, 0, 0, (1, 2))) == Credential(11, 12)


@pytest.mark.parametrize("ids", [(0xFFFFFFFF, 5, ()), (5, 0xFFFFFFFF, ()), (5, 5, (1, 0xFFFFFFFF))])
def test_nobody_acts_as_nobody(ids: tuple[int, int, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="nobody has this id"):
        Credential(*ids)


def test_looked_up_groups_have_ids_that_somebody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, -1, 3, 0xFFFFFFFF])
    assert look_up_groups(0, 9) == (9, 3)


def test_nobody_is_not_looked_up() -> None:
    def look_up(uid: int, gid: int) -> tuple[int, ...]:
        assert uid == 1000, "the name service knows nobody"
        return (gid, 20)

    e = export(anonuid=11, anongid=77)
    table = ExportTable((e,), groups=GroupLists(look_up=look_up))
    sixteen = tuple(range(100, 116))

    async def main() -> None:
        assert await table.credential(e, AUTH_SYS, None, 5, sixteen) == Credential(11, 5, sixteen)
        assert await table.credential(e, AUTH_SYS, 1000, None, sixteen) == Credential(1000, 77, (77, 20))

    asyncio.run(main())


def test_sixteen_groups_are_replaced_by_the_servers_list_and_squashed_after() -> None:
    asked: list[tuple[int, int]] = []
    clock = [0.0]

    def look_up(uid: int, gid: int) -> tuple[int, ...]:
        asked.append((uid, gid))
        return tuple(range(20)) if uid == 1000 else ()

    async def main() -> None:
        e = export(anongid=77)
        groups = GroupLists(look_up=look_up, clock=lambda: clock[0], ttl=10)
        table = ExportTable((e,), groups=groups)
        sixteen = tuple(range(100, 116))
        both = await asyncio.gather(*(table.credential(e, AUTH_SYS, 1000, 5, sixteen) for _ in range(2)))
        assert both == [Credential(1000, 5, (77, *range(1, 20)))] * 2
        assert asked == [(1000, 5)]  # shared
        assert (await table.credential(e, AUTH_SYS, 1000, 5, sixteen)).gids[1:] == tuple(range(1, 20))
        # Unknown here: the client's word stands.
        assert (await table.credential(e, AUTH_SYS, 1001, 5, sixteen)).gids == sixteen
        assert (await table.credential(e, AUTH_SYS, 1001, 5, sixteen)).gids == sixteen
        assert asked == [(1000, 5), (1001, 5)]
        # Fewer than sixteen are complete.
        assert (await table.credential(e, AUTH_SYS, 1000, 5, sixteen[:15])).gids == sixteen[:15]
        clock[0] = 11  # old: still used, asked again behind it
        await table.credential(e, AUTH_SYS, 1000, 5, sixteen)
        await groups.look_up(1000, 5)
        assert asked == [(1000, 5), (1001, 5), (1000, 5)]

    asyncio.run(main())


def test_host_names_and_wildcards_need_admission() -> None:
    async def main() -> None:
        e = export("*.example.com", "one.example.net", overrides=(ClientOverride("one.example.net", squash="none"),))
        source = names({"one.example.net": {"192.0.2.1"}}, {"192.0.2.2": {"a.b.example.com"}})
        table = ExportTable((e,), names=source)
        assert not table.visible(e, "192.0.2.1")
        for peer in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
            waiting = table.admit(peer)
            assert waiting is not None
            await waiting
            assert table.admit(peer) is None
        assert table.visible(e, "192.0.2.1")
        assert table.visible(e, "192.0.2.2")
        assert not table.visible(e, "192.0.2.3")
        assert (await table.credential(e, AUTH_SYS, 0, 0, (), "192.0.2.1")).uid == 0
        assert (await table.credential(e, AUTH_SYS, 0, 0, (), "192.0.2.2")).uid == 65534
        await table.close()

    asyncio.run(main())


def test_strangers_who_are_asked_about_have_nothing_else_forgotten() -> None:
    """Where wildcards ask for names, any host that connects is looked up; one in an IPv6 network has many addresses."""

    async def main() -> None:
        e = export("*.example.com", "one.example.net")
        source = names({"one.example.net": {"192.0.2.1"}}, {"192.0.2.2": {"a.example.com"}})
        table = ExportTable((e,), names=source)
        honest = "192.0.2.1", "192.0.2.2"
        for peer in honest:
            await (table.admit(peer) or asyncio.sleep(0))
        before = table.edition.number
        for number in range(5000):
            await (table.admit(f"2001:db8::{number:x}") or asyncio.sleep(0))
            if number % 1000 == 0:
                for peer in honest:
                    source._expiry[True, peer] = 0  # its time is over, so it is asked about again
                    assert table.admit(peer) is None
                    await source._running[True, peer]
        for peer in honest:
            assert table.admit(peer) is None
            assert table.visible(e, peer)
        assert table.edition.number == before, "and what is known of callers stays so"
        assert len(source._expiry) <= 4098
        await table.close()

    asyncio.run(main())


def test_stale_names_are_used_while_they_are_refreshed_and_then_replaced() -> None:
    async def main() -> None:
        clock, answer, answered = [0.0], {"192.0.2.1"}, asyncio.Event()
        source = HostNames(forward=lambda _: frozenset(answer), clock=lambda: clock[0], ttl=10)
        e = export("moving.example.net")
        table = ExportTable((e,), names=source)
        await (table.admit("192.0.2.1") or asyncio.sleep(0))
        assert table.visible(e, "192.0.2.1")
        answer.clear()
        answer.add("192.0.2.2")
        clock[0] = 20
        forget = source._changed

        def changed() -> None:
            forget()
            answered.set()

        source.on_change(changed)
        assert table.admit("192.0.2.1") is None
        assert table.visible(e, "192.0.2.1")
        await answered.wait()
        assert not table.visible(e, "192.0.2.1")
        assert table.visible(e, "192.0.2.2")
        await table.close()

    asyncio.run(main())


def test_a_name_service_that_hangs_delays_admission_only_so_long() -> None:
    release = threading.Event()

    async def main() -> None:
        def hang(_: str) -> frozenset[str]:
            release.wait(30)
            return frozenset()

        e = export("slow.example.net")
        table = ExportTable((e,), names=HostNames(forward=hang, patience=0.01))
        waiting = table.admit("192.0.2.1")
        assert waiting is not None
        await waiting
        assert not table.visible(e, "192.0.2.1")
        release.set()
        await table.close()

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it does not happen")


def slow_for(slow: set[str], asked: list[str], release: threading.Event) -> HostNames:
    """Reverse look-ups of some peers take as long as somebody likes."""

    def reverse(address: str) -> frozenset[str]:
        asked.append(address)
        if address in slow:
            release.wait(60)
        return frozenset({"host.example.org"} if address == "203.0.113.7" else ())

    return HostNames(forward=lambda _: frozenset({"192.0.2.1"}), reverse=reverse, patience=20)


@pytest.mark.parametrize("crowd", ["one network", "one of the largest networks", "many of the largest networks"])
def test_peers_with_slow_names_hold_up_no_others(crowd: str) -> None:
    release = threading.Event()

    async def main() -> None:
        form = {"one network": "198.51.100.%d", "one of the largest networks": "198.51.%d.1"}.get(crowd, "198.%d.0.1")
        slow = [form % n for n in range(1, 40)]
        asked: list[str] = []
        source = slow_for({*slow}, asked, release)
        one, other = export("moving.example.net"), replace(export("*.example.org"), id=8)
        table = ExportTable((one, other), names=source)
        waiting = [asyncio.ensure_future(table.admit(peer)) for peer in slow]  # type: ignore[arg-type]
        await until(lambda: len(asked) >= 2)
        await until(lambda: source.addresses_of("moving.example.net"))
        del source._expiry[False, "moving.example.net"], source._addresses["moving.example.net"]  # as if it were new
        admitting = table.admit("203.0.113.7")
        assert admitting is not None
        if crowd.startswith("one"):
            await admitting
            assert table.visible(other, "203.0.113.7"), "its name is known"
        else:
            await until(lambda: source.addresses_of("moving.example.net"))
        assert table.visible(one, "192.0.2.1"), "and so is the address of the configuration's name"
        release.set()
        await asyncio.gather(*waiting)
        await table.close()

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_one_network_has_few_names_asked_for_at_a_time() -> None:
    release = threading.Event()

    async def main() -> None:
        peers = [f"2001:db8::{n:x}" for n in range(1, 1001)]
        asked: list[str] = []
        source = slow_for({*peers}, asked, release)
        table = ExportTable((export("*.example.org"),), names=source)
        waiting = [asyncio.ensure_future(table.admit(peer)) for peer in peers]  # type: ignore[arg-type]
        await until(lambda: len(asked) >= 2)
        await asyncio.sleep(0.2)
        assert len(asked) == 2
        assert len(source._running) <= 258
        assert await asyncio.wait_for(waiting[-1], 10) is None, "it is told at once that its name is not known"
        release.set()
        await asyncio.gather(*waiting)
        assert len(asked) == 258
        assert table.admit(peers[0]) is None
        assert table.admit(peers[-1]) is not None, "it may ask again"
        await table.close()

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_export_ids_are_stable_and_differ() -> None:
    assert derive_id("/srv/a") == derive_id("/srv/a")
    assert len({derive_id(f"/srv/{i}") for i in range(1000)}) == 1000
    assert all(0 < derive_id(f"/srv/{i}") < 2**32 for i in range(1000))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%eth0", "fe80::1"), ("2001:DB8:0::1", "2001:db8::1"), ("host", "host")],
)
def test_canonical_address(text: str, expected: str) -> None:
    assert canonical_address(text) == expected
