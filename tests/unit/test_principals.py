"""As whom principals of Kerberos act: rules, users of the realm, and nobody for machines and whoever would be root."""

from __future__ import annotations

import os
import pwd
import threading
from pathlib import Path

import pytest

from nfsd.keytabs import KeytabError, principals_in, realms_of
from nfsd.principals import Principals, look_up_user, taken_apart
from rpcrdma.gss.identity import Identity
from tests.support import kdc

USERS = {"ann": (1001, 100), "bob": (1002, 100), "root": (0, 0), "toor": (0, 0), "guest": (1999, 1999)}
GROUPS = {1001: (100, *range(2000, 2040)), 1002: (100,), 0: (0,), 1999: (1999,)}
RULES = {
    "host/known.example.org@EXAMPLE.ORG": "guest",
    "ann/admin@EXAMPLE.ORG": "root",
    "bad@EXAMPLE.ORG": "nobody",
    "host/*@EXAMPLE.ORG": "bob",
    "*@PARTNER.ORG": "guest",
    "lost@EXAMPLE.ORG": "unknown",
}


class Asked:
    def __init__(self, rules: dict[str, str] | None = None) -> None:
        self.names: list[str] = []
        self.now = 0.0
        self.principals = Principals(
            ["EXAMPLE.ORG", "OTHER.ORG"], rules, user=self._user, groups=lambda uid, gid: GROUPS[uid],
            clock=lambda: self.now, ttl=300, unknown_ttl=30,
        )  # fmt: skip

    def _user(self, name: str) -> tuple[int, int] | None:
        self.names.append(name)
        return USERS.get(name)

    def uid(self, principal: str) -> int | None:
        found = self.principals(principal)
        return None if found is None else found.uid


@pytest.mark.parametrize(
    ("principal", "uid"),
    [
        ("ann@EXAMPLE.ORG", 1001),
        ("ann@OTHER.ORG", 1001),
        ("ann@ELSEWHERE.ORG", None),
        ("ann@example.org", None),  # realms have a case
        ("ann", None),
        ("nobody.knows@EXAMPLE.ORG", None),
        ("root@EXAMPLE.ORG", None),
        ("toor@EXAMPLE.ORG", None),  # another name of root's
        ("host/client@EXAMPLE.ORG", None),
        ("nfs/server@EXAMPLE.ORG", None),
        ("root/client@EXAMPLE.ORG", None),
        ("ann/admin@EXAMPLE.ORG", None),
        ("CLIENT$@EXAMPLE.ORG", None),
        ("ann\\@EXAMPLE.ORG@ELSEWHERE.ORG", None),
        ("ann@ELSEWHERE.ORG@EXAMPLE.ORG", None),
        ("ann\\/x@EXAMPLE.ORG", None),
        ("@EXAMPLE.ORG", None),
        ("ann@", None),
        ("a" * 5000 + "@EXAMPLE.ORG", None),
        ("", None),
    ],
)
def test_without_rules_users_of_the_realms_are_themselves_and_others_nobody(principal: str, uid: int | None) -> None:
    assert Asked().uid(principal) == uid


@pytest.mark.parametrize(
    ("principal", "uid"),
    [
        ("host/known.example.org@EXAMPLE.ORG", 1999),
        ("host/other.example.org@EXAMPLE.ORG", 1002),
        ("host/other.example.org@ELSEWHERE.ORG", None),
        ("ann/admin@EXAMPLE.ORG", 0),
        ("bad@EXAMPLE.ORG", None),
        ("anybody@PARTNER.ORG", 1999),
        ("root@PARTNER.ORG", 1999),
        ("lost@EXAMPLE.ORG", None),
        ("bob@EXAMPLE.ORG", 1002),
        ("evil@ELSEWHERE.ORG\\@PARTNER.ORG", None),  # a name of ELSEWHERE's or nobody's, never PARTNER's
    ],
)
def test_rules_come_first_a_name_in_full_before_patterns(principal: str, uid: int | None) -> None:
    assert Asked(RULES).uid(principal) == uid


def test_users_are_in_all_their_groups() -> None:
    assert Asked().principals("ann@EXAMPLE.ORG") == Identity(1001, 100, GROUPS[1001])


def test_answers_are_remembered_for_a_while_those_about_nobody_for_less() -> None:
    asked = Asked()
    for _ in range(3):
        asked.uid("ann@EXAMPLE.ORG")
        asked.uid("nobody.knows@EXAMPLE.ORG")
    assert asked.names == ["ann", "nobody.knows"]
    asked.now = 31.0
    asked.uid("ann@EXAMPLE.ORG")
    asked.uid("nobody.knows@EXAMPLE.ORG")
    assert asked.names == ["ann", "nobody.knows", "nobody.knows"]
    asked.now = 301.0
    asked.uid("ann@EXAMPLE.ORG")
    assert asked.names[3:] == ["ann"]


def test_so_many_are_remembered_and_no_more() -> None:
    asked = Asked()
    for number in range(5000):
        asked.uid(f"user{number}@EXAMPLE.ORG")
    assert len(asked.principals._answers) == 4096


def test_a_name_service_that_fails_is_asked_again() -> None:
    answers: list[OSError | tuple[int, int]] = [OSError("it is down"), (1001, 100)]

    def user(name: str) -> tuple[int, int]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    principals = Principals(["EXAMPLE.ORG"], user=user, groups=lambda uid, gid: ())
    with pytest.raises(OSError, match="it is down"):
        principals("ann@EXAMPLE.ORG")
    assert principals("ann@EXAMPLE.ORG") == Identity(1001, 100)


def test_threads_may_ask_at_the_same_time() -> None:
    asked = Asked()
    threads = [threading.Thread(target=lambda: [asked.uid(f"u{n}@EXAMPLE.ORG") for n in range(6000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked.principals._answers) == 4096


def test_this_system_s_users_are_found() -> None:
    me = pwd.getpwuid(os.getuid())
    assert look_up_user(me.pw_name) == (me.pw_uid, me.pw_gid)
    assert look_up_user("no such user") is None
    assert look_up_user("a\0b") is None


def test_what_a_principal_is_made_of() -> None:
    assert taken_apart("ann/admin@EXAMPLE.ORG") == ("ann/admin", "EXAMPLE.ORG")
    assert taken_apart("ann@A/B") is None


# -- keytabs ---------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not kdc.PRESENT, reason=kdc.WITHOUT_KDC)
def test_the_principals_of_a_keytab_are_those_that_it_has_keys_of(tmp_path: Path) -> None:
    realm = kdc.Realm(tmp_path / "realm")
    path = realm.keytab("nfs/localhost", "host/server.example.org")
    assert principals_in(str(path)) == ["nfs/localhost@EXAMPLE.ORG", "host/server.example.org@EXAMPLE.ORG"]
    assert realms_of(principals_in(str(path))) == ["EXAMPLE.ORG"]


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        (None, "no such file or directory; it must be there"),
        (b"", "is no keytab"),
        (b"PEM", "is no keytab"),
        (b"\x05\x02\0\0\0\x04\0\x09\0\x09", "is damaged"),
        (b"\x05\x02\0\0\0\x08\0\x01\0\x02\xff\xff\0\x01", "is damaged"),
    ],
)
def test_what_is_no_keytab_is_said_to_be_none(tmp_path: Path, octets: bytes | None, message: str) -> None:
    path = tmp_path / "keytab"
    if octets is not None:
        path.write_bytes(octets)
    with pytest.raises(KeytabError, match=message):
        principals_in(str(path))


def test_holes_of_a_keytab_are_passed_over(tmp_path: Path) -> None:
    entry = b"\0\x01\0\x01R\0\x03nfs" + bytes(20)
    sized = len(entry).to_bytes(4, "big")
    hole = (-5 & 0xFFFFFFFF).to_bytes(4, "big") + b"holes"
    (tmp_path / "keytab").write_bytes(b"\x05\x02" + hole + sized + entry + hole + sized + entry)
    assert principals_in(str(tmp_path / "keytab")) == ["nfs@R"]
