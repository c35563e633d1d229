"""The configuration file: what is accepted, what it means, and what is said about mistakes."""

from pathlib import Path

import pytest

from nfsd.config import Address, Config, split_host_port
from nfsd.config_file import ConfigError, load
from nfsd.config_stable import RadosPool
from nfsd.exports import ClientOverride, ExportTable

MINIMAL = """\
server:
  listen: ["rdma://127.0.0.1:20049", "tcp://127.0.0.1:2049"]   # rdma: provider auto | softiwarp | verbs
  mountd_port: 20048
  state_dir: ./state
exports:
  - path: ./export          # directory on the local file system
    pseudo: /export         # its name for clients
    access: rw              # rw | ro
    squash: root            # root (default) | none | all  (anonuid, anongid)
    clients: ["*"]          # addresses, CIDR, host names, *
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("export", "other", "third"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("")
    return tmp_path


def read(directory: Path, text: str) -> Config:
    file = directory / "exports.yaml"
    file.write_text(text)
    return load(str(file))


def problems(directory: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(directory, text)
    return [f"{p.line}: {p.key}: {p.message}" for p in caught.value.problems]


def test_the_minimal_form(directory: Path) -> None:
    found = read(directory, MINIMAL)
    assert [entry.address for entry in found.server.listen] == [
        Address("rdma", "127.0.0.1", 20049),
        Address("tcp", "127.0.0.1", 2049),
    ]
    assert found.server.mountd_port == 20048
    assert found.server.state_dir == str(directory / "state")
    (export,) = found.exports
    assert (export.path, export.pseudo) == (str(directory / "export"), "/export")
    assert (export.read_only, export.squash, export.clients) == (False, "root", ("*",))
    assert found.server.listen[0].provider == "auto"
    assert found.server.listen[0].credits == 128


def test_everything_else(directory: Path) -> None:
    found = read(
        directory,
        """
server:
  listen:
    - {url: "rdma://[::1]", provider: softiwarp, send_size: 8192, receive_size: 16KiB, credits: 64, crc: always,
       tos: 104}
    - tcp://*:0
  mountd_port: 0
  state_dir: /nonexistent/state
  rpcbind: false
  nfs4: {lease_time: 10, grace_time: 0}
  limits: {memory: 1GiB, connection_memory: 16m, connections: 5, calls: 7, idle_time: 1.5, drain_time: 3}
  log: {level: debug}
  metrics: {listen: "127.0.0.1:9400"}
exports:
  - path: export
    clients: [10.0.0.0/8, {host: 10.1.2.3, access: ro, squash: none, anonuid: 5}, "*.example.com"]
    async: true
    cross_mounts: false
    workers: 3
    id: 77
  - {path: other, pseudo: /a//b/, access: ro, squash: all, anonuid: 0, anongid: 4294967294}
""",
    )
    server = found.server
    rdma, tcp = server.listen
    assert rdma.address == Address("rdma", "::1", 20049)
    assert str(rdma.address) == "rdma://[::1]:20049"
    assert tcp.address == Address("tcp", "::", 0)
    assert (rdma.send_size, rdma.receive_size, rdma.credits, rdma.crc) == (8192, 16384, 64, "always")
    assert rdma.tos == 104
    assert server.limits.memory == 1 << 30
    assert server.limits.connection_memory == 16 << 20
    assert (server.nfs4.lease_time, server.nfs4.grace_time) == (10, 0)
    first, second = found.exports
    assert first.pseudo == "/export"
    assert (first.id, first.asynchronous, first.cross_mounts, first.workers) == (77, True, False, 3)
    assert first.clients == ("10.0.0.0/8", "10.1.2.3", "*.example.com")
    assert first.overrides == (ClientOverride("10.1.2.3", True, "none", 5, None),)
    assert second.pseudo == "/a/b"
    assert (second.read_only, second.squash, second.anonuid, second.anongid) == (True, "all", 0, 0xFFFFFFFE)


def test_where_records_are_kept(directory: Path) -> None:
    text = MINIMAL.replace("state_dir: ./state", "stable_storage: sqlite")
    assert read(directory, text).server.stable_storage.rados is None
    text = MINIMAL.replace("state_dir: ./state", "name: files1\n  stable_storage: {rados: {pool: records}}")
    assert read(directory, text).server.stable_storage.rados == RadosPool(pool="records")


def test_a_client_may_write_where_the_others_only_read(directory: Path) -> None:
    text = MINIMAL.replace("access: rw", "access: ro")
    clients = "['*', {host: 10.0.0.1, access: rw}, {host: 10.0.0.2, squash: all}]"
    (export,) = read(directory, text.replace('["*"]', clients)).exports
    table = ExportTable((export,))
    assert not export.read_only  # or nobody could
    assert [table.read_only(export, peer) for peer in ("10.0.0.1", "10.0.0.2", "10.0.0.3")] == [False, True, True]
    (export,) = read(directory, text).exports
    assert export.read_only


def test_an_id_stays_when_other_exports_come_and_go(directory: Path) -> None:
    before = read(directory, MINIMAL).exports[0].id
    more = MINIMAL.replace("exports:\n", "exports:\n  - path: other\n")
    assert read(directory, more).exports[1].id == before


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("access: rw", "acess: rw", 8, ["exports[0].acess", "did you mean 'access'?"]),
        ("mountd_port: 20048", "mountdport: 20048", 3, ["server.mountdport", "did you mean 'mountd_port'?"]),
        ("mountd_port: 20048", "zzz: 20048", 3, ["server.zzz", "there are listen, mountd_port"]),
        ("mountd_port: 20048", "mountd_port: 70000", 3, ["server.mountd_port", "at most 65535"]),
        ("mountd_port: 20048", "mountd_port: '20048'", 3, ["server.mountd_port", "whole number"]),
        ("mountd_port: 20048", "mountd_port: true", 3, ["server.mountd_port", "whole number"]),
        ("squash: root", "squash: rot", 9, ["exports[0].squash", "'root', 'none' or 'all'", "did you mean 'root'?"]),
        ("squash: root", "squash: no", 9, ["exports[0].squash", "quote"]),
        ("squash: root", "squash: root\n    squash: all", 10, ["exports[0].squash", "twice", "line 9", "remove"]),
        ("squash: root", "async: 1", 9, ["exports[0].async", "must be true, false or names"]),
        ("squash: root", "anonuid: -1", 9, ["exports[0].anonuid", "at least 0"]),
        ("squash: root", "anonuid: 4294967295", 9, ["exports[0].anonuid", "no one's id", "65534"]),
        ("squash: root", "anongid: 4294967295", 9, ["exports[0].anongid", "no one's id", "65534"]),
        ("squash: root", "anongid: 4294967296", 9, ["exports[0].anongid", "at most 4294967294"]),
        ('["*"]', "[{host: a, anonuid: 4294967295}]", 10, ["exports[0].clients[0].anonuid", "no one's id", "65534"]),
        ('["*"]', "[{host: a, anongid: 4294967295}]", 10, ["exports[0].clients[0].anongid", "no one's id", "65534"]),
        ("./export  ", "3  ", 6, ["exports[0].path", "must be text", "quotes"]),
        ("pseudo: /export", "pseudo: export", 7, ["exports[0].pseudo", "begin with a slash", "'/export'"]),
        ("pseudo: /export", "pseudo: /a/../b", 7, ["exports[0].pseudo", "plain name"]),
        ("state_dir: ./state", "state_dir: ./file", 4, ["server.state_dir", "not a directory"]),
        ("state_dir: ./state", "state_dir: ./export/x", 4, ["server.state_dir", "inside of the export"]),
        ('"rdma://127.0.0.1:20049"', '"rmda://127.0.0.1:20049"', 2, ["server.listen[0]", "rdma://HOST:PORT"]),
        ('"rdma://127.0.0.1:20049"', '"tcp://localhost:2049"', 2, ["server.listen[0]", "no address", "0.0.0.0"]),
        ('"rdma://127.0.0.1:20049"', '"tcp://127.0.0.1:99999"', 2, ["server.listen[0]", "last one is 65535"]),
        ('"rdma://127.0.0.1:20049"', '"tcp://::1:99"', 2, ["server.listen[0]", "brackets"]),
        ('"rdma://127.0.0.1:20049"', '"tcp://127.0.0.1"', 2, ["server.listen[1]", "twice"]),
        ('"rdma://127.0.0.1:20049"', "{url: 'tcp://[::1]', credits: 9}", 2, ["credits", "rdma:// addresses only"]),
        ('"rdma://127.0.0.1:20049"', "{url: 'rdma://[::1]', crc: maybe}", 2, ["listen[0].crc", "'auto' or 'always'"]),
        ('"rdma://127.0.0.1:20049"', "{url: 'rdma://[::1]', send_size: 1000}", 2, ["send_size", "at least 1024"]),
        ('"rdma://127.0.0.1:20049"', "{url: 'rdma://[::1]', send_size: 4097}", 2, ["send_size", "multiple of 1024"]),
        ('"rdma://127.0.0.1:20049"', "{url: 'rdma://[::1]', send_size: lots}", 2, ["send_size", "512MiB"]),
        ('"rdma://127.0.0.1:20049"', "{uri: 'rdma://[::1]'}", 2, ["listen[0].uri", "did you mean 'url'?"]),
        ('"rdma://127.0.0.1:20049"', "5", 2, ["server.listen[0]", "must be a mapping with url"]),
        ('["*"]', '["10.0.0.0/33"]', 10, ["exports[0].clients[0]", "no address or network"]),
        ('["*"]', '["300.1.1.1"]', 10, ["exports[0].clients[0]", "no address or network"]),
        ('["*"]', '["@"]', 10, ["exports[0].clients[0]", "no netgroup"]),
        ('["*"]', '["@a b"]', 10, ["exports[0].clients[0]", "no netgroup"]),
        ('["*"]', '["a b"]', 10, ["exports[0].clients[0]", "host name"]),
        ('["*"]', '["a", "a"]', 10, ["exports[0].clients[1]", "twice"]),
        ('["*"]', '"*"', 10, ["exports[0].clients", "must be a list"]),
        ('["*"]', '["*"', 11, ["is not YAML"]),
        ("state_dir: ./state", "metrics: {listen: '127.0.0.1'}", 4, ["server.metrics.listen", "port is missing"]),
        ("state_dir: ./state", "limits: {memory: 16MiB}", 4, ["connection_memory", "not be more than memory"]),
        ("state_dir: ./state", "limits: {host_memory: 1G}", 4, ["host_memory", "not be more than memory"]),
        ("state_dir: ./state", "stable_storage: ldap", 4, ["server.stable_storage", "write sqlite, or a mapping"]),
        ("state_dir: ./state", "stable_storage: {}", 4, ["server.stable_storage", "write sqlite, or a mapping"]),
        ("state_dir: ./state", "stable_storage: {rados: {pool: p}}", 4, ["stable_storage", "with server.name"]),
        ("state_dir: ./state", "stable_storage: {rados: {}}", 4, ["server.stable_storage.rados.pool", "is missing"]),
        ("state_dir: ./state", "stable_storage: {rado: {}}", 4, ["stable_storage.rado", "did you mean 'rados'?"]),
        ("state_dir: ./state", "name: a/b", 4, ["server.name", "not of the form"]),
        (
            "state_dir: ./state",
            "name: a\n  processes: 2\n  stable_storage: {rados: {pool: p}}",
            6,
            ["stable_storage", "set server.processes to 1"],
        ),
        ("state_dir: ./state", "nfs4: 90", 4, ["server.nfs4", "mapping with lease_time, grace_time"]),
    ],
)
def test_one_mistake_is_named_with_line_key_and_remedy(
    directory: Path, old: str, new: str, line: int, expected: list[str]
) -> None:
    assert old in MINIMAL
    found = problems(directory, MINIMAL.replace(old, new))
    about = [problem for problem in found if all(text in problem for text in expected)]
    assert about, found
    assert about[0].startswith(f"{line}: "), about


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("  - path: export\n    pseudo: /x\n", "is exported already in line 6"),
        ("  - path: ./other/../export\n    pseudo: /x\n", "is exported already in line 6"),
        ("  - path: other\n    pseudo: /export\n", "is the name of another export already: line 7"),
        ("  - path: other\n    pseudo: /export/in\n", "lies inside of /export, the name of another export: line 7"),
        ("  - path: other\n    pseudo: /\n", "contains /export, the name of another export: line 7"),
        ("  - path: other\n    id: 5\n  - path: third\n    id: 5\n", "is 5, as in line 11"),
    ],
)
def test_exports_that_get_in_each_others_way(directory: Path, extra: str, expected: str) -> None:
    (problem,) = problems(directory, MINIMAL + extra)
    assert expected in problem


def test_all_mistakes_are_reported_in_the_order_of_their_lines(directory: Path) -> None:
    text = (
        MINIMAL.replace("squash: root", "squash: x").replace("mountd_port", "mount_port").replace("access: rw", "a: 1")
    )
    found = problems(directory, text)
    assert [p.split(":")[0] for p in found] == ["3", "8", "9"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- a\n- b\n", "must be a mapping with server, exports"),
        ("server:\nexports: []\n", "1: server: must be a mapping with listen"),
        ("exports: []\n", "server: is missing; add it"),
        ("server: {listen: []}\nexports: []\n", "2: exports: must have at least one entry"),
        ("server: &a {listen: *a}\nexports: []\n", "refers to itself"),
        ("a: [\t\n", "is not YAML"),
        ("a: !!python/object:os.system {}\n", ""),
        ("server: \x07\n", "is not YAML"),
    ],
)
def test_files_that_are_no_configuration(directory: Path, text: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(directory, text))


def test_anchors_and_merge_keys_work(directory: Path) -> None:
    found = read(
        directory,
        "server: {listen: ['tcp://[::1]:0']}\n"
        "exports:\n"
        "  - &base {path: export, access: ro, squash: all}\n"
        "  - {<<: *base, path: other, access: rw}\n",
    )
    assert [(e.read_only, e.squash) for e in found.exports] == [(True, "all"), (False, "all")]


def test_a_file_that_cannot_be_read(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file"):
        load(str(directory / "absent.yaml"))
    (directory / "latin.yaml").write_bytes(b"server: \xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(str(directory / "latin.yaml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:1", ("::1", 1)),
        ("[::1]", ("::1", 7)),
        ("*:0", ("::", 0)),
        ("*", ("::", 7)),
    ],
)
def test_hosts_and_ports(text: str, expected: tuple[str, int]) -> None:
    assert split_host_port(text, 7) == expected
