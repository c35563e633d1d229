"""Users and groups by name: what strings mean, what the name service is asked and when, and that nothing waits long."""

import asyncio
import grp
import os
import pwd
import threading
from types import SimpleNamespace

import pytest

from nfsd import idnames
from nfsd.idnames import IdNames, Question, ask_the_system, default_domain
from nfsd.protocol import nfs4 as p
from nfsd.v4.attributes import words_of
from rpcrdma.xdr import Encoder
from tests.support.nfs4 import Client4, serving, values, wanted

PEOPLE = {
    Question(False, b"alice"): 1001,
    Question(False, 1001): b"alice",
    Question(True, b"staff"): 50,
    Question(True, 50): b"staff",
}


class Service:
    """A name service that remembers what it was asked."""

    def __init__(self, answers=PEOPLE):
        self.answers = answers
        self.asked = []
        self.failing = False
        self.go = threading.Event()
        self.go.set()

    def __call__(self, question):
        self.asked.append(question)
        assert self.go.wait(30)
        if self.failing:
            raise OSError("no connection to the directory server")
        return self.answers.get(question)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def with_names(test, **how):
    async def main():
        service, clock = Service(), Clock()
        names = IdNames(domain="Example.ORG", ask=service, clock=clock, **how)
        try:
            await test(names, service, clock)
        finally:
            service.go.set()
            await names.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (b"0", 0),
        (b"1000", 1000),
        (b"0042", 42),
        (b"4294967294", 4294967294),
        (b"4294967295", None),
        (b"12345678901", None),
        (b"-1", None),
        (b"alice@example.org", Question(False, b"alice")),
        (b"alice@EXAMPLE.org", Question(False, b"alice")),
        (b"a@b@example.org", Question(False, b"a@b")),
        (b"1000@example.org", Question(False, b"1000")),
        (b"alice@elsewhere.org", None),
        (b"alice", None),
        (b"nobody", None),
        (b"@example.org", None),
        (b"a\0b@example.org", None),
        (b"x" * 300 + b"@example.org", None),
    ],
)
def test_what_an_owner_string_means(text, meant):
    names = IdNames(domain="Example.ORG")
    assert names.question(text, group=False) == meant
    if isinstance(meant, Question):
        assert names.question(text, group=True) == meant._replace(group=True)


@pytest.mark.parametrize("number", [-1, 0xFFFFFFFF])
def test_a_name_service_makes_nobody_an_owner(monkeypatch, number):
    monkeypatch.setattr(pwd, "getpwnam", lambda name: SimpleNamespace(pw_uid=number))
    monkeypatch.setattr(grp, "getgrnam", lambda name: SimpleNamespace(gr_gid=number))
    assert ask_the_system(Question(False, b"someone")) is None
    assert ask_the_system(Question(True, b"someone")) is None


def test_names_are_shown_where_they_are_known_and_numbers_elsewhere():
    async def test(names, service, clock):
        assert names.owner(1001) == b"1001"
        await names.learn_ids([1001, 7], [50])
        assert (names.owner(1001), names.owner_group(50)) == (b"alice@example.org", b"staff@example.org")
        assert names.owner(7) == b"7"
        assert len(service.asked) == 3
        await names.learn_ids([1001, 7], [50])
        assert len(service.asked) == 3, "what is known, and who is unknown, is remembered"

    with_names(test, numeric=False)


def test_numbers_need_no_name_service():
    async def test(names, service, clock):
        await names.learn_ids([1001], [50])
        assert (names.owner(1001), names.owner_group(50)) == (b"1001", b"50")
        assert service.asked == []

    with_names(test)


def test_old_answers_are_given_while_fresh_ones_are_fetched():
    async def test(names, service, clock):
        question = Question(False, b"alice")
        assert await names.learn([question]) == {question: 1001}
        service.answers = {question: 2002}
        clock.now = 601
        assert names.known(question) == (True, 1001)
        await asyncio.gather(*names._running.values())
        assert names.known(question) == (True, 2002)
        assert service.asked == [question] * 2
        # Unknown names are asked about again sooner.
        nobody = Question(False, b"carol")
        assert await names.learn([nobody]) == {nobody: None}
        service.answers = {nobody: 3}
        clock.now += 61
        assert await names.learn([nobody]) == {nobody: None}
        await asyncio.gather(*names._running.values())
        assert names.known(nobody) == (True, 3)

    with_names(test)


def test_a_silent_or_failing_name_service_is_not_waited_for_and_remembered_as_nothing():
    async def test(names, service, clock):
        question = Question(False, b"alice")
        service.go.clear()
        with pytest.raises(OSError, match="does not answer") as late:
            await names.learn([question])
        assert late.value.errno == 110
        await names.learn_ids([1001], [])  # only shown: goes by number
        assert names.owner(1001) == b"1001"
        assert service.asked.count(question) == 1
        service.go.set()
        await asyncio.gather(*names._running.values())
        assert names.known(question) == (True, 1001)
        service.failing = True
        with pytest.raises(OSError, match="does not answer"):
            await names.learn([Question(False, b"bob")])
        assert names.known(Question(False, b"bob")) == (False, None)

    with_names(test, numeric=False, patience=0.01)


def test_askers_of_the_same_question_share_it():
    async def test(names, service, clock):
        question = Question(True, b"staff")
        answers = await asyncio.gather(*(names.learn([question]) for _ in range(50)))
        assert answers == [{question: 50}] * 50
        assert service.asked == [question]

    with_names(test)


def test_memory_and_waiting_questions_are_bounded(monkeypatch):
    monkeypatch.setattr(idnames, "_LIMIT", 8)

    async def test(names, service, clock):
        for number in range(30):
            await names.learn([Question(False, number)])
        assert not names.known(Question(False, 0))[0]
        assert names.known(Question(False, 29))[0]
        assert sum(names.known(Question(False, number))[0] for number in range(30)) == 8
        service.go.clear()
        with pytest.raises(OSError, match="enough to do"):
            await names.learn([Question(True, number) for number in range(100)])
        assert len(names._running) == 8

    with_names(test)


def test_the_system_knows_root_and_not_everybody():
    root = pwd.getpwuid(0).pw_name.encode()
    assert ask_the_system(Question(False, root)) == 0
    assert ask_the_system(Question(False, 0)) == root
    assert ask_the_system(Question(True, 0)) is not None
    assert ask_the_system(Question(True, b"no such group here")) is None
    assert ask_the_system(Question(False, 4294967200)) is None
    assert default_domain()


# -- over the protocol ------------------------------------------------------------------------------------------------
def over_the_protocol(tmp_path, test, **how):
    async def main():
        export = tmp_path / "export"
        export.mkdir(exist_ok=True)
        (tmp_path / "state").mkdir(exist_ok=True)
        (export / "f").write_bytes(b"")
        service = Service()
        names = IdNames(domain="example.org", ask=service, **how)
        async with serving(export, state_dir=tmp_path / "state", names=names) as server:
            try:
                await test(await Client4(server, 2).connect(), export, service)
            finally:
                service.go.set()

    asyncio.run(main())


def owner(name, number=p.FATTR4_OWNER):
    e = Encoder()
    e.opaque(name)
    given = p.fattr4(words_of(1 << number), e.getvalue())
    return (p.OP_SETATTR, p.SETATTR4args(p.stateid4(0, bytes(12)), given))


def test_owners_are_set_and_shown_by_name(tmp_path):
    async def test(client, export, service):
        here = client.path("/0/f")
        await client.run(*here, owner(b"alice@example.org"))
        await client.run(*here, owner(b"staff@example.org", p.FATTR4_OWNER_GROUP))
        status = os.stat(export / "f")
        assert (status.st_uid, status.st_gid) == (1001, 50)
        assert await client.status(*here, owner(b"carol@example.org")) == p.NFS4ERR_BADOWNER
        assert await client.status(*here, owner(b"alice@example.com")) == p.NFS4ERR_BADOWNER
        assert await client.status(*here, owner(b"staff@example.org")) == p.NFS4ERR_BADOWNER, "a group is no user"
        asked = wanted(p.FATTR4_OWNER, p.FATTR4_OWNER_GROUP)
        *_, got = await client.run(*here, (p.OP_GETATTR, asked))
        d = values(got.resok4.obj_attributes)
        assert (d.opaque(99), d.opaque(99)) == (b"alice@example.org", b"staff@example.org")
        listing = p.READDIR4args(0, bytes(8), 8192, 8192, asked.attr_request)
        *_, listed = await client.run(*client.path("/0"), (p.OP_READDIR, listing))
        d = values(listed.resok4.reply.entries[0].attrs)
        assert d.opaque(99) == b"alice@example.org"
        # Numbers go as well.
        await client.run(*here, owner(b"4321"))
        assert os.stat(export / "f").st_uid == 4321
        *_, got = await client.run(*here, (p.OP_GETATTR, asked))
        assert values(got.resok4.obj_attributes).opaque(99) == b"4321"

    over_the_protocol(tmp_path, test, numeric=False)


def test_names_are_taken_where_numbers_are_shown(tmp_path):
    async def test(client, export, service):
        here = client.path("/0/f")
        await client.run(*here, owner(b"alice@example.org"))
        *_, got = await client.run(*here, (p.OP_GETATTR, wanted(p.FATTR4_OWNER)))
        assert values(got.resok4.obj_attributes).opaque(99) == b"1001"
        assert service.asked == [Question(False, b"alice")]

    over_the_protocol(tmp_path, test)


def test_without_an_answer_the_client_comes_again(tmp_path):
    async def test(client, export, service):
        service.go.clear()
        here = client.path("/0/f")
        before = os.stat(export / "f").st_uid
        assert await client.status(*here, owner(b"alice@example.org")) == p.NFS4ERR_DELAY
        assert os.stat(export / "f").st_uid == before
        # The loop was never held up: other operations go on meanwhile.
        assert await client.status(*here, p.OP_GETFH) == p.NFS4_OK

    over_the_protocol(tmp_path, test, patience=0.02)
