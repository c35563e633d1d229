"""``xprtsec``: for whom a caller speaks whose connection is not secured as all that it may use demands."""

from types import SimpleNamespace
from typing import Any

import pytest

from nfsd.exports import Export, ExportTable


def connection(security: str, port: int = 700) -> Any:
    return SimpleNamespace(netid="tcp", peer_address="192.0.2.1", peer_port=port, security=security, certified="")


@pytest.mark.parametrize(("demanded", "enough"), [(("tls", "mtls"), ["tls", "mtls"]), (("mtls",), ["mtls"])])
def test_who_may_use_nothing_as_it_is_secured_does_not_speak_for_its_host(
    demanded: tuple[str, ...], enough: list[str]
) -> None:
    """Whoever can put calls on the way would end the state of a client that is secured, in its name."""
    table = ExportTable([Export(1, "/data", "/data", xprtsec=demanded)])
    assert [one for one in ("none", "tls", "mtls") if table.speaks_for_host(connection(one))] == enough
    assert table.speaker(connection("none")) != table.speaker(connection("mtls"))


def test_one_export_that_may_be_used_is_enough() -> None:
    exports = [Export(1, "/data", "/data", xprtsec=("mtls",)), Export(2, "/open", "/open")]
    assert ExportTable(exports).speaks_for_host(connection("none"))
