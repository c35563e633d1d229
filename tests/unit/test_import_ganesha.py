"""rdma-nfsd import --ganesha: the EXPORT blocks of a ganesha.conf."""

import pytest
import yaml

from nfsd.cli import main

HEAD = "EXPORT {\n  Export_Id = 7;\n  Path = /srv;\n  Pseudo = /data;\n  FSAL { Name = VFS; }\n"


@pytest.fixture
def imported(tmp_path, capsys):
    def run(text, status=0):
        file = tmp_path / "ganesha.conf"
        file.write_text(text)
        assert main(["import", "--ganesha", str(file)]) == status
        out, err = capsys.readouterr()
        said = [line.removeprefix(f"{file}:") for line in err.splitlines()]
        made = yaml.safe_load(out)["exports"] if out else []
        others = [line for line in said if "async: names does as Ganesha does" not in line]
        assert len(said) - len(others) == bool(made), "how names become durable is said once"
        return made, others

    return run


def test_blocks(imported):
    made, said = imported(
        "# all of it\nEXPORT_DEFAULTS { Squash = No_Root_Squash; Anonymous_Uid = 99; }\n" + HEAD
        + "  Access_Type = RO; # for others\n  Protocols = 4;\n  MaxRead = 65536;\n  Manage_Gids = true;\n"
        '  CLIENT { Clients = 10.0.0.0/8, "*.example.org", @trusted;\n Access_Type = RW; PrivilegedPort = TRUE; }\n}\n'
    )  # fmt: skip
    assert said == []
    assert made == [
        {
            "path": "/srv",
            "pseudo": "/data",
            "id": 7,
            "squash": "none",
            "anonuid": 99,
            "anongid": 65534,
            "secure": True,
            "clients": ["10.0.0.0/8", "*.example.org", "@trusted", {"host": "*", "access": "ro", "secure": False}],
            "versions": [4.0, 4.1, 4.2],
            "max_read": 65536,
            "manage_gids": True,
        }
    ]


def test_its_defaults_are_its_own(imported):
    (made,), said = imported(HEAD + "Access_Type = RW; }")
    assert (made["squash"], made["anonuid"], made.get("clients"), said) == ("root", 65534, None, [])
    made, said = imported(HEAD + "}", 2)
    assert made == []
    assert said[0] == "1: NOT IMPORTED: /srv: is left out: nobody may use it (Access_Type is None by default)"


@pytest.mark.parametrize(
    ("more", "line", "why"),
    [
        ("CLIENT { Clients = 10.1.0.0/16; Access_Type = NONE; }", 6, "* would let in 10.1.0.0/16"),
        ("CLIENT { Clients = 10.1.0.0/16; Access_Type = MDONLY; }", 6, "Access_Type = mdonly: not supported"),
        ("CLIENT { Clients = 10.0.0.1; Clients = 10.0.0.2; Access_Type = None; }", 6, "* would let in 10.0.0.1"),
        ("Protocols = 9P;", 6, "Protocols = 9P: is no NFS"),
        ("SecType = krb5, spkm;", 6, "SecType = krb5, spkm: spkm is not supported"),
    ],
)
def test_nobody_is_let_in_by_looser_settings_than_there(imported, more, line, why):
    made, said = imported(HEAD + f"{more}\nAccess_Type = RW; }}", 2)
    assert made == []
    assert any(one.startswith(f"{line}: NOT IMPORTED: /srv: ") and why in one for one in said), said


def test_callers_are_known_as_there(imported):
    (made,), said = imported(HEAD + "Access_Type = RW; SecType = krb5, krb5p; }")
    assert (made["sec"], said) == (["krb5", "krb5p"], [])
    (made,), said = imported(clients(("10.0.0.1", "SecType = sys;"), access="RW; SecType = krb5p"))
    assert made["clients"] == ["10.0.0.1", {"host": "*", "sec": ["krb5p"]}]
    assert "sec" not in made


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (HEAD.replace("VFS", "CEPH") + "Access_Type = RW; }", 2, "5: NOT IMPORTED: /srv: FSAL CEPH is not supported"),
        (HEAD + "Access_Type = RW;\nMaxOffsetRead = 5;\n}", 0, "7: /srv: maxoffsetread is left out"),
        (HEAD + "Access_Type = RW;\nTag = x;\n}", 0, "7: /srv: tag is left out"),
        (HEAD + "Access_Type = RW;\n}\nNFSv4 { Graceless = true; }", 0, "8: NFSV4 is left out: only EXPORT blocks"),
        (
            HEAD + "Access_Type = RW;\nCLIENT { Clients = a; Access_Type = RW; Protocols = 3; }\n}",
            0,
            "7: /srv: protocols of",
        ),
        (HEAD + "Access_Type = RW;\nSquash = RootId;\n}", 0, "7: /srv: Squash = rootid: root's group is squashed"),
        (HEAD + 'Access_Type = RW;\n}\n%include "other.conf"\n', 2, '8: NOT IMPORTED: %include "other.conf": is'),
        (HEAD + "Access_Type = RW;", 2, "1: NOT IMPORTED: the block export does not end"),
        ("EXPORT {\n = }", 2, "2: NOT IMPORTED: '=' is not expected here"),
    ],
)
def test_what_is_not_taken_over_is_named_with_its_line(imported, text, status, said):
    assert imported(text, status)[1][0].startswith(said)


def clients(*blocks, access="None"):
    """An EXPORT with CLIENT blocks, each a list of clients and its settings."""
    listed = "".join(f"CLIENT {{ Clients = {hosts}; {settings} }}\n" for hosts, settings in blocks)
    return f"{HEAD}{listed}Access_Type = {access}; }}"


RW, NONE = "Access_Type = RW;", "Access_Type = None;"


@pytest.mark.parametrize(
    "blocks",
    [
        [("10.0.0.1", NONE), ("10.0.0.1", RW)],
        [("10.0.0.0/8", NONE), ("10.0.0.0/24", RW)],
        [("*", NONE), ("10.0.0.1", RW)],
        [("0.0.0.0", NONE), ("10.0.0.1", RW)],
        [("@banned", NONE), ("10.0.0.1", RW)],
        [("*.example.org", NONE), ("10.0.0.1", RW)],
        [("@all", "Access_Type = RO;"), ("10.0.0.1", RW)],
        [("10.0.0.0/8", "Access_Type = RW; Squash = all;"), ("host", RW)],
        [("10.0.0.0/8", "Access_Type = RW; SecType = krb5;"), ("host", RW)],
        [("*.org", "Access_Type = RW; PrivilegedPort = true;"), ("*.example.org", RW)],
    ],
)
def test_a_later_client_has_no_more_than_an_earlier_one_leaves_it(imported, blocks):
    """There the first that fits counts, here the most specific."""
    made, said = imported(clients(*blocks), 2)
    assert made == []
    assert "NOT IMPORTED: /srv: is left out" in said[0]


def test_the_order_of_clients_is_kept_where_it_can_be(imported):
    (made,), said = imported(clients(("10.0.0.1", RW), ("@admins, @others", RW), ("*", NONE), access="RO"))
    assert (made["clients"], said) == (["10.0.0.1", "@admins", "@others"], [])
    (made,), said = imported(clients(("10.0.0.0/8", "Access_Type = RO;"), ("10.0.0.1", RW)))
    assert (made["access"], made["clients"], said) == ("ro", ["10.0.0.0/8"], [])
    (made,), said = imported(clients(("10.0.0.1", "Access_Type = RO;"), ("10.0.0.0/8", RW)))
    assert (made["access"], made["clients"]) == ("ro", ["10.0.0.1", {"host": "10.0.0.0/8", "access": "rw"}])
    (made,), said = imported(clients(("0.0.0.0/0", RW)))
    assert made["clients"] == ["0.0.0.0/0"], "IPv6 is not let in"


def test_clients_of_the_defaults_count_where_an_export_has_none(imported):
    defaults = "EXPORT_DEFAULTS { CLIENT { Clients = 10.0.0.1; Access_Type = None; } }\n"
    made, said = imported(defaults + clients(access="RW"), 2)
    assert made == []
    assert "* would let in 10.0.0.1" in said[0]
    (made,), _ = imported(defaults + clients(("10.0.0.1", "Access_Type = RO;"), access="RW"))
    assert made["clients"] == ["10.0.0.1", {"host": "*", "access": "rw"}]


@pytest.mark.parametrize("word", ["4", "NFS4", "v4", "NFSv4"])
def test_no_version_is_served_that_was_not(imported, word):
    (made,), _ = imported(HEAD + f"Access_Type = RW; Protocols = {word}; }}")
    assert made["versions"] == [4.0, 4.1, 4.2]
    (made,), said = imported(clients(("10.0.0.1", f"Access_Type = RW; Protocols = {word};"), access="RO"))
    assert made["versions"] == [4.0, 4.1, 4.2]
    assert "protocols of a CLIENT is left out" in said[0]


def test_what_lies_inside_of_others_is_named(imported):
    inner = HEAD.replace("/srv", "/srv/secret").replace("/data", "/secret").replace("7", "8")
    made, said = imported(f"{HEAD}Access_Type = RW; }}\n{inner}Access_Type = RW; SecType = krb5; }}", 1)
    assert [one["path"] for one in made] == ["/srv", "/srv/secret"]
    (line,) = said
    assert line.startswith("7: NOT IMPORTED: /srv/secret: clients reach it all the same: /srv, ")
    inner = inner.replace('Name = "VFS"', "Name = CEPH").replace("Name = VFS", "Name = CEPH")
    made, said = imported(f"{HEAD}Access_Type = RW; }}\n{inner}Access_Type = RW; }}", 1)
    assert [one["path"] for one in made] == ["/srv"]
    assert any("clients reach it all the same: /srv" in one for one in said)
