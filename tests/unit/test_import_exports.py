"""rdma-nfsd import: the exports of Linux's server as a configuration, which is checked and served."""

import asyncio
import os

import pytest
import yaml

from nfsd.cli import main
from nfsd.config_file import load
from nfsd.daemon import Daemon
from nfsd.exports import ExportTable
from nfsd.importing.lines import Grant, Line, read
from nfsd.importing.mapping import may_cover
from rpcrdma.rpc.rpcbind import Rpcbind
from tests.nfs3_client import Nfs3Failure
from tests.unit.test_daemon import client_of


@pytest.fixture
def imported(tmp_path, capsys):
    """The exports that the text of a file becomes, and what was said on stderr, without the file's name."""

    def run(text, status=0):
        file = tmp_path / "exports"
        file.write_text(text)
        assert main(["import", str(file)]) == status
        out, err = capsys.readouterr()
        said = [line.removeprefix(f"{file}:") for line in err.splitlines()]
        return (yaml.safe_load(out)["exports"] if out else []), said

    return run


def test_lines():
    text = (
        "# a comment\n"
        '"/a path" host(rw) -ro,async 10.0.0.0/8(insecure) \\\n'
        "   *.example.org # another\n"
        "/with\\040space\\303\\244\n"
        "relative host(rw)\n"
        "/x host(rw\n"
        "\n"
        "/y host1(rw)host2(ro)\n"
        "/last -ro"
    )
    grants, wrong = read(text, "f")
    assert grants == [
        Grant("/a path", "host", ("rw",), Line("f", 2)),
        Grant("/a path", "10.0.0.0/8", ("ro", "async", "insecure"), Line("f", 2)),
        Grant("/a path", "*.example.org", ("ro", "async"), Line("f", 3)),
        Grant("/with spaceä", "", (), Line("f", 4)),
        Grant("/last", "", ("ro",), Line("f", 9)),
    ]
    assert [(line.number, why) for line, why in wrong] == [
        (5, "'relative' is no absolute path"),
        (6, "'host(rw' is not CLIENT(OPTIONS)"),
        (8, "'host1(rw)host2(ro)' is not CLIENT(OPTIONS)"),
    ]


def test_defaults_are_those_of_linux(imported):
    exports, said = imported("/srv host(rw) 10.0.0.1\n/world\n")
    assert exports == [
        {
            "path": "/srv",
            "pseudo": "/srv",
            "secure": "tcp",
            "clients": ["host", {"host": "10.0.0.1", "access": "ro"}],
        },
        {"path": "/world", "pseudo": "/world", "access": "ro", "secure": "tcp"},
    ]
    assert said == ["2: /world: no client is named: it is for everybody"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("rw,insecure", {}),
        ("ro,insecure", {"access": "ro"}),
        ("rw", {"secure": "tcp"}),
        ("rw,insecure,no_root_squash", {"squash": "none"}),
        ("rw,insecure,all_squash,anonuid=1000,anongid=100", {"squash": "all", "anonuid": 1000, "anongid": 100}),
        ("rw,insecure,no_root_squash,all_squash", {"squash": "all"}),
        ("rw,insecure,all_squash,no_all_squash", {}),
        ("rw,insecure,anonuid=-2", {"anonuid": 4294967294}),
        ("rw,insecure,async", {"async": True}),
        ("rw,insecure,crossmnt,security_label", {"cross_mounts": True, "security_labels": True}),
        ("rw,insecure,mp", {"mountpoint": True}),
        ("rw,insecure,mountpoint=/other", {"mountpoint": "/other"}),
        ("rw,insecure,fsid=77,no_subtree_check,wdelay,hide,sync,sec=sys", {"id": 77}),
        ("rw,insecure,replicas=/a@one+two:/b@three", {"replicas": ["one:/a", "two:/a", "three:/b"]}),
    ],
)
def test_what_there_is_for_it(imported, options, expected):
    exports, said = imported(f"/srv *({options})\n")
    assert (exports, said) == ([{"path": "/srv", "pseudo": "/srv", **expected}], [])


def test_referrals(imported):
    exports, _ = imported("/srv *(rw,insecure,refer=/there@one+two)\n")
    assert exports == [{"pseudo": "/srv", "referral": ["one:/there", "two:/there"]}]


@pytest.mark.parametrize(
    "option",
    [
        "no_wdelay",
        "subtree_check",
        "nohide",
        "insecure_locks",
        "no_auth_nlm",
        "no_acl",
        "nordirplus",
        "pnfs",
        "fsid=5e4a1e2e-0000-0000-0000-000000000000",
        "reexport=auto-fsidnum",
        "anonuid=4294967295",
        "nonsense",
        "nonsense=7",
    ],
)
def test_what_is_not_is_named_with_its_line(imported, option):
    exports, said = imported(f"\n/srv *(rw,insecure,{option})\n")
    assert exports == [{"path": "/srv", "pseudo": "/srv"}]
    assert len(said) == 1
    assert said[0].startswith("2: /srv: ")
    assert option in said[0]


@pytest.mark.parametrize(
    "client",
    ["@group(rw,sec=lkey)", "10.0.0.1(sec=krb5,rw,sec=sys,ro)", "10.0.0.1(sec=lipkey:sys)",
     "10.0.0.1(xprtsec=tls:ipsec)", "gss/krb5(rw)", "host[12](rw)", "10.0.0.1(anonuid=me)", "10.0.0.1(refer=nonsense)"],
)  # fmt: skip
def test_who_cannot_be_let_in_as_before_is_left_out(imported, client):
    exports, said = imported(f"/srv 192.0.2.1(rw,insecure) {client}\n", status=1)
    assert exports == [{"path": "/srv", "pseudo": "/srv", "clients": ["192.0.2.1"]}]
    assert len(said) == 1
    assert said[0].startswith("1: NOT IMPORTED: /srv: ")


def test_callers_are_known_as_before(tmp_path, imported, capsys):
    text = "/srv -rw,insecure 10.0.0.1(sec=krb5i:krb5p) 10.0.0.2(sec=krb5:unix) 10.0.0.3() *()\n"
    exports, said = imported(text)
    assert said == []
    (entry,) = exports
    assert entry == {
        "path": "/srv",
        "pseudo": "/srv",
        "clients": [
            {"host": "10.0.0.1", "sec": ["krb5i", "krb5p"]},
            {"host": "10.0.0.2", "sec": ["krb5", "sys"]},
            "10.0.0.3",
            "*",
        ],
    }
    file = tmp_path / "all"
    several = "10.0.0.1(rw,sec=krb5) 10.0.0.2(rw,sec=krb5) 10.0.0.3(rw) 10.0.0.4(rw)"
    file.write_text(f"/srv *(rw,insecure,sec=krb5p)\n/other {several}\n")
    assert main(["import", str(file)]) == 0
    text = capsys.readouterr().out
    whole = yaml.safe_load(text)
    assert "&" not in text
    assert whole["server"]["kerberos"] == {"keytab": "/etc/krb5.keytab"}
    assert whole["exports"][0] == {"path": "/srv", "pseudo": "/srv", "sec": ["krb5p"]}
    assert [one["sec"] for one in whole["exports"][1]["clients"] if isinstance(one, dict)] == [["sys"], ["sys"]]


def test_nobody_is_let_in_by_looser_settings_than_before(imported):
    text = "/srv 10.0.0.1(rw,sec=lkey) 10.0.0.0/8(rw)\n/other *(rw)\n"
    exports, said = imported(text, status=1)
    assert [export["path"] for export in exports] == ["/other"]
    assert "nor the rest of it: 10.0.0.0/8 would let in 10.0.0.1" in said[1]
    assert may_cover("*", "@group")
    assert not may_cover("10.0.0.0/8", "@group")
    assert may_cover("@group", "10.0.0.1")
    assert may_cover("@group", "@other")
    assert not may_cover("@group", "*")
    assert may_cover("*.example.org", "10.0.0.1")
    assert may_cover("10.0.0.0/8", "host.example.org")
    assert not may_cover("10.0.0.0/8", "11.0.0.0/8")
    assert not may_cover("10.0.0.0/24", "10.0.0.0/8")
    assert may_cover("10.0.0.1", "host.example.org")
    assert not may_cover("10.0.0.1", "*.example.org")
    assert may_cover("2001:db8::/32", "2001:db8::1")


def test_what_demands_tls_demands_it_here(imported):
    exports, said = imported("/srv *(rw,insecure,xprtsec=none:tls)\n")
    assert exports == [{"path": "/srv", "pseudo": "/srv", "xprtsec": ["none", "tls"]}]
    assert not said
    text = "/srv 10.0.0.1(rw,insecure,xprtsec=mtls) *(rw,insecure) @all(rw,insecure,xprtsec=none:tls:mtls)\n"
    exports, said = imported(text, status=1)
    assert exports[0]["clients"] == [{"host": "10.0.0.1", "xprtsec": ["mtls"]}, "*", "@all"]
    assert "xprtsec" not in exports[0]
    assert len(said) == 1
    assert "demands TLS, which takes a certificate; set server.tls" in said[0]


def test_netgroups_are_taken_over(imported):
    exports, said = imported("/srv @trusted(rw,no_root_squash,insecure) *(ro,insecure)\n")
    assert exports == [
        {
            "path": "/srv",
            "pseudo": "/srv",
            "squash": "none",
            "clients": ["@trusted", {"host": "*", "access": "ro", "squash": "root"}],
        }
    ]
    assert not said


def test_nothing_of_one_client_is_given_to_the_others(imported):
    text = "/srv 10.0.0.1(rw,async,crossmnt,no_root_squash) 10.0.0.2(rw,mp) 10.0.0.2(rw,insecure)\n"
    exports, said = imported(text)
    assert exports == [
        {
            "path": "/srv",
            "pseudo": "/srv",
            "squash": "none",
            "secure": "tcp",
            "clients": ["10.0.0.1", {"host": "10.0.0.2", "squash": "root"}],
            "mountpoint": True,
        }
    ]
    assert any("async is left out, for it cannot differ by client" in line for line in said)
    assert any("cross_mounts is left out" in line for line in said)
    assert any("10.0.0.2 stands there before" in line for line in said)


def test_the_root_of_nfsv4(imported):
    exports, said = imported("/export *(rw,insecure,fsid=0)\n")
    assert exports == [{"path": "/export", "pseudo": "/"}]
    assert "whose clients mounted /export" in said[0]
    text = "/export *(ro,fsid=root)\n/export/home *(rw,insecure)\n/other *(rw,insecure)\n"
    exports, said = imported(text, status=1)
    assert [(export["path"], export["pseudo"]) for export in exports] == [
        ("/export/home", "/home"),
        ("/other", "/other"),
    ]
    assert "1: NOT IMPORTED: /export with fsid=0" in said[0]
    assert "/export/home is /home" in said[0]


def test_exports_inside_of_others(imported):
    exports, said = imported("/srv *(rw,insecure)\n/srv/below *(ro)\n", status=1)
    assert [export["path"] for export in exports] == ["/srv"]
    assert said == [
        "2: NOT IMPORTED: /srv/below lies inside of /srv, which is exported: clients reach it through that, by the "
        "settings of that; with cross_mounts: true if a file system is mounted there"
    ]


def test_nothing_to_import_and_files_that_are_there_already(imported, tmp_path, capsys):
    assert imported("# nothing\n", status=2) == ([], [f"rdma-nfsd import: {tmp_path}/exports: nothing to import"])
    assert main(["import", str(tmp_path / "gone")]) == 2
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "exports").write_text("/srv *(rw)\n")
    for status in (0, 2):
        assert main(["import", str(tmp_path / "exports"), "-o", str(tmp_path / "out.yaml")]) == status
    assert "File exists" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "exports"), "--state-dir", "/srv/state"]) == 1
    assert "lies inside of the export /srv" in capsys.readouterr().err


def test_what_is_imported_is_good_and_served(tmp_path, capsys):
    """From /etc/exports and exports.d to files written by clients, with the rights that each had."""
    for name in ("one", "two", "with space", "mounted"):
        (tmp_path / name).mkdir()
        os.chmod(tmp_path / name, 0o777)
    (tmp_path / "exports").write_text(
        f"{tmp_path}/one 127.0.0.0/255.0.0.0(rw,insecure,no_root_squash,no_subtree_check) *(ro)\n"
        f'"{tmp_path}/with space" *(ro,insecure,all_squash,anonuid=1234)\n'
        f"{tmp_path}/mounted *(rw,mp)\n"
    )
    (tmp_path / "exports.d").mkdir()
    (tmp_path / "exports.d" / "more.exports").write_text(f"{tmp_path}/two 192.0.2.1(rw)\n")
    (tmp_path / "exports.d" / "ignored").write_text("nonsense\n")
    result = tmp_path / "imported.yaml"
    listen = ["--listen", "tcp://127.0.0.1:0", "--state-dir", str(tmp_path / "state"), "-o", str(result)]
    assert main(["import", str(tmp_path / "exports"), *listen]) == 0
    assert capsys.readouterr().err == ""
    result.write_text(result.read_text().replace("server:\n", "server:\n  mountd_port: 0\n"))
    assert main(["check", "--config", str(result)]) == 1
    assert capsys.readouterr().err.count("\n") == 1, "nothing is mounted at mounted"
    config = load(str(result))
    table = ExportTable(config.exports)
    by_name = {os.path.basename(export.path): export for export in config.exports}
    assert set(by_name) == {"one", "two", "with space", "mounted"}
    access = table.access(by_name["one"], "192.0.2.7")
    assert (access.read_only, access.squash, access.secure) == (True, "root", "tcp")
    assert table.access(by_name["two"], "192.0.2.7") is None
    assert table.access(by_name["two"], "192.0.2.1").read_only is False

    async def serve():
        daemon = Daemon(config, Rpcbind((), None))
        await daemon.start()
        try:
            async with await client_of(daemon, "mountd") as mountd, await client_of(daemon, uid=0, gid=0) as client:
                root = await mountd.mount(f"{tmp_path}/one")
                await client.create(root, b"made")
                readable = await mountd.mount(f"{tmp_path}/with space")
                with pytest.raises(Nfs3Failure, match="ROFS"):
                    await client.create(readable, b"made")
                for refused in ("two", "mounted"):
                    with pytest.raises(Nfs3Failure):
                        await mountd.mount(f"{tmp_path}/{refused}")
        finally:
            await daemon.stop()

    asyncio.run(serve())
    assert os.stat(tmp_path / "one" / "made").st_uid == 0, "no_root_squash"


@pytest.fixture
def with_conf(tmp_path, capsys):
    """The whole configuration that one export and a text of nfs.conf become, and what was said of that file."""

    def run(text, status=0, *arguments):
        exports, conf = tmp_path / "exports", tmp_path / "nfs.conf"
        exports.write_text("/srv *(rw)\n")
        conf.write_text(text)
        assert main(["import", str(exports), "--nfs-conf", str(conf), *arguments]) == status
        out, err = capsys.readouterr()
        return yaml.safe_load(out), [line.removeprefix(f"{conf}:") for line in err.splitlines()]

    return run


def test_what_nfs_conf_says_of_the_server(with_conf, tmp_path):
    more = tmp_path / "nfs.conf.d"
    more.mkdir()
    (more / "local.conf").write_text("[nfsd]\nlease-time = 60\n")
    (tmp_path / "ports").write_text("[lockd]\nport=4001\n")
    made, said = with_conf(
        "# a comment\n[general]\npipefs-directory=/run/rpc_pipefs\ninclude = ports\n"
        "[mountd]\nmanage-gids = y\nport = 20050\n"
        '[nfsd]\nhost = 10.0.0.1, \\\n  fd00::1\nport=2050\nrdma=y\nrdma-port=20100\nvers3="n"\nvers4.0=off\n'
        "grace-time=30\nlease-time=90\n[statd]\nport=4002\n[gssd]\nverbosity=1\n"
    )
    assert said == []
    assert made["server"] == {
        "listen": [
            "rdma://10.0.0.1:20100", "rdma://[fd00::1]:20100", "tcp://10.0.0.1:2050", "tcp://[fd00::1]:2050",
        ],
        "versions": [4.1, 4.2],
        "nfs4": {"grace_time": 30, "lease_time": 60},
        "mountd_port": 20050,
        "nlm_port": 4001,
        "nsm_port": 4002,
        "state_dir": "/var/lib/rdma-nfsd",
    }  # fmt: skip
    assert made["exports"][0]["manage_gids"] is True


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("", ["rdma://0.0.0.0:20049", "tcp://0.0.0.0:2049"]),
        ("[nfsd]\nrdma=n\n", ["tcp://0.0.0.0:2049"]),
        ("[nfsd]\nrdma=20100\ntcp=n\n", ["rdma://0.0.0.0:20100"]),
        ("[nfsd]\nhost=10.0.0.1 # of storage\nrdma=n ; none\n", ["tcp://10.0.0.1:2049"]),
        ("[nfsd]\nrdma=nfsrdma\nport=2050\n", ["rdma://0.0.0.0:20049", "tcp://0.0.0.0:2050"]),
    ],
)
def test_where_nfs_conf_listens(with_conf, text, listen):
    assert with_conf(text)[0]["server"]["listen"] == listen
    assert with_conf(text, 0, "--listen", "tcp://127.0.0.1:1")[0]["server"]["listen"] == ["tcp://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("threads=64", 0, "[nfsd] threads is left out: one event loop serves all"),
        ("udp=y", 0, "[nfsd] udp is left out: this server has no NFS over UDP"),
        ("vers3=perhaps", 0, "[nfsd] vers3=perhaps is left out: neither yes nor no"),
        ("lease-time=soon", 0, "[nfsd] lease-time=soon is left out: no number"),
        ("scope=here", 0, "[nfsd] scope is left out: the server's identity"),
        ("nonsense", 0, "'nonsense' is neither [SECTION] nor KEY = VALUE"),
        (
            "host=server.example.org",
            1,
            "NOT IMPORTED: [nfsd] host=server.example.org is left out: it must be an address",
        ),
        ("tcp=n\nrdma=n", 1, "NOT IMPORTED: [nfsd] neither tcp nor rdma is on"),
    ],
)
def test_what_of_nfs_conf_is_not_taken_over_is_named_with_its_line(with_conf, line, status, said):
    (only,) = with_conf(f"[nfsd]\n{line}\n", status)[1]
    assert only.startswith(f"2: {said}")


@pytest.mark.parametrize("text", ["host=server.example.org", "tcp=n\nrdma=n"])
def test_it_does_not_listen_everywhere_where_it_listened_nowhere_or_elsewhere(with_conf, text):
    assert with_conf(f"[nfsd]\n{text}\n", 1)[0]["server"]["listen"] == ["tcp://127.0.0.1:2049"]


def test_directories_begin_where_they_began(with_conf):
    made, said = with_conf("[exports]\nrootdir = /data\n")
    assert said == []
    assert [(one["path"], one["pseudo"]) for one in made["exports"]] == [("/data/srv", "/srv")]


def test_a_version_is_not_served_again_for_a_remark(with_conf):
    assert with_conf("[nfsd]\nvers3=n # nobody has it\n")[0]["server"]["versions"] == [4.0, 4.1, 4.2]
