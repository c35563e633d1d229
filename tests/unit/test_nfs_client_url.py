"""URLs of files on servers, and the statuses of servers as errors of this host."""

import errno

import pytest

from nfsd.client.errors import os_error
from nfsd.client.url import UrlError, components, is_url, parse
from nfsd.protocol.nfs3 import nfsstat3
from nfsd.protocol.nfs4_errors import nfsstat4


@pytest.mark.parametrize(
    ("text", "transport", "host", "port", "names", "again"),
    [
        ("rdma://host/export/a", "rdma", "host", 20049, (b"export", b"a"), "rdma://host:20049/export/a"),
        ("tcp://host", "tcp", "host", 2049, (), "tcp://host:2049/"),
        ("tcp://192.0.2.1:99//a/./b/", "tcp", "192.0.2.1", 99, (b"a", b"b"), "tcp://192.0.2.1:99/a/b"),
        ("rdma://[2001:db8::1]:1/a%20b", "rdma", "2001:db8::1", 1, (b"a b",), "rdma://[2001:db8::1]:1/a%20b"),
        ("RDMA://Host/%FF%3F%23%25", "rdma", "host", 20049, (b"\xff?#%",), "rdma://host:20049/%FF%3F%23%25"),
        ("tcp://h/a/../b", "tcp", "h", 2049, (b"a", b"..", b"b"), "tcp://h:2049/a/../b"),
        ("tcp://h/ä:@", "tcp", "h", 2049, ("ä:@".encode(),), "tcp://h:2049/%C3%A4:@"),
    ],
)
def test_urls(text: str, transport: str, host: str, port: int, names: tuple[bytes, ...], again: str) -> None:
    url = parse(text)
    assert (url.transport, url.host, url.port, url.names) == (transport, host, port, names)
    assert str(url) == again
    assert parse(str(url)) == url


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("/local/path", "is no URL; one looks like rdma://host/export/path"),
        ("http://host/", "the scheme is rdma, tcp or tls"),
        ("rdma:///export", "names no host"),
        ("rdma://host:0/", "no port 0"),
        ("rdma://host:70000/", "range"),
        ("rdma://host:x/", "x"),
        ("rdma://root@host/", "no user name"),
        ("rdma://host/a?b", "%3F"),
        ("rdma://host/a#", "%23"),
        ("rdma://host/a%2Fb", "slash"),
        ("rdma://host/a%00", "NUL"),
        ("rdma://[host]/", "host"),
    ],
)
def test_what_is_no_url_is_said_with_the_remedy(text: str, complaint: str) -> None:
    with pytest.raises(UrlError, match=complaint.replace("?", "[?]")):
        parse(text)


def test_local_paths_are_told_from_urls() -> None:
    assert is_url("rdma://host/a")
    assert not is_url("./rdma://x".replace("rdma", "a/b"))
    assert not is_url("file")
    assert not is_url("")
    assert components("a//b/./../c/") == [b"a", b"b", b"..", b"c"]


def test_the_statuses_are_the_errors_that_python_has_for_them() -> None:
    assert type(os_error(nfsstat3.NFS3ERR_NOENT, 3)) is FileNotFoundError
    assert type(os_error(nfsstat4.NFS4ERR_ACCESS, 4, "name")) is PermissionError
    assert str(os_error(nfsstat4.NFS4ERR_ACCESS, 4, "name")) == "[Errno 13] Permission denied: 'name'"
    stale = os_error(nfsstat3.NFS3ERR_BADHANDLE, 3)
    assert (stale.errno, stale.__notes__) == (errno.ESTALE, ["NFS3ERR_BADHANDLE"])
    unknown = os_error(12345, 4)
    assert (unknown.errno, unknown.strerror) == (errno.EREMOTEIO, "Remote I/O error (status 12345)")
    assert "minute or two" in str(os_error(nfsstat4.NFS4ERR_GRACE, 4))
    for status in [*nfsstat3, *nfsstat4]:
        version = 3 if isinstance(status, nfsstat3) else 4
        assert os_error(status, version).__notes__ == [status.name]
