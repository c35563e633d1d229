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
        return (yaml.safe_load(out)["exports"] if out else []), said

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
        ("CLIENT { Clients = 10.1.0.0/16; SecType = krb5; }", 6, "SecType = krb5: only sys is supported"),
        ("CLIENT { Clients = 10.1.0.0/16; Access_Type = MDONLY; }", 6, "Access_Type = mdonly: not supported"),
        ("SecType = krb5, krb5i;", 6, "SecType = krb5, krb5i: only sys is supported"),
    ],
)
def test_nobody_is_let_in_by_looser_settings_than_there(imported, more, line, why):
    made, said = imported(HEAD + f"{more}\nAccess_Type = RW; }}", 2)
    assert made == []
    assert any(one.startswith(f"{line}: NOT IMPORTED: /srv: ") and why in one for one in said), said


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
        (HEAD + 'Access_Type = RW;\n}\n%include "other.conf"\n', 0, '8: %include "other.conf": is not followed'),
        (HEAD + "Access_Type = RW;", 2, "1: NOT IMPORTED: the block export does not end"),
        ("EXPORT {\n = }", 2, "2: NOT IMPORTED: '=' is not expected here"),
    ],
)
def test_what_is_not_taken_over_is_named_with_its_line(imported, text, status, said):
    assert imported(text, status)[1][0].startswith(said)
