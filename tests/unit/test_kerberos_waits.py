"""Calls by Kerberos that wait for long, while many others are made with the same context."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from nfsd.client import Options, connect
from nfsd.client.url import parse
from nfsd.client.v41 import Nfs41
from nfsd.protocol import nfs4 as p
from nfsd.v4 import recalls
from rpcrdma.client import ClientOptions, Gss
from rpcrdma.gss.contexts import SEQUENCE_WINDOW
from tests.support import kdc
from tests.unit.test_kerberos import Site, run
from tests.unit.test_kerberos_state import NFS, ask, caller, create_session, exchange_id, sequence
from tests.unit.test_kerberos_trouble import acceptor_of
from tests.unit.test_kerberos_trouble import realm as realm  # a fixture

pytestmark = [
    pytest.mark.skipif(not kdc.PRESENT, reason=kdc.WITHOUT_KDC),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as other users"),
]


@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone"])
def test_a_call_that_changes_hands_after_a_long_wait_is_no_replay(
    tmp_path: Path, realm: kdc.Realm, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """It was begun natively. When it goes on elsewhere its sequence number is far behind the window, and its context
    may be gone."""
    monkeypatch.setattr(recalls, "PATIENCE", 60.0)

    async def test(site: Site) -> None:
        recalled, may_return = asyncio.Event(), asyncio.Event()
        gss = Gss("krb5", "nfs@localhost", site.cache("ann"))
        options = Options(nfs_version="4.1", delegations=True, rpc=ClientOptions(gss=gss))
        url = parse(f"tcp://127.0.0.1:{site.server.port('nfs', 'tcp')}/strong")
        async with (
            connect(url, options) as holder,
            holder.open("file", "r") as held,
            caller(site, "ann", "krb5") as one,
        ):
            assert await held.read() == b"secret"
            client = holder.backend
            assert isinstance(client, Nfs41)
            begin = client.caller.backchannel.recall

            def recall(stateid: p.stateid4) -> bool:
                recalled.set()
                task = asyncio.ensure_future(may_return.wait())
                task.add_done_callback(lambda _: begin(stateid))
                return True

            client.caller.backchannel.recall = recall
            _, made = await ask(one, exchange_id(protect=False))
            clientid = made.eir_resok4.eir_clientid
            _, session = await ask(one, create_session(clientid, made.eir_resok4.eir_sequenceid))
            sessionid = session.csr_resok4.csr_sessionid
            complete = (p.OP_RECLAIM_COMPLETE, p.RECLAIM_COMPLETE4args(False))
            assert (await ask(one, sequence(sessionid, 1), complete))[0] == p.NFS4_OK
            remove = (p.OP_REMOVE, p.REMOVE4args(b"file"))
            here = (p.OP_LOOKUP, p.LOOKUP4args(b"strong"))
            no_native_body = (p.OP_SECINFO_NO_NAME, p.secinfo_style4.SECINFO_STYLE4_CURRENT_FH)
            waiting = asyncio.ensure_future(
                ask(one, sequence(sessionid, 2), (p.OP_PUTROOTFH, None), here, remove, no_native_body)
            )
            await recalled.wait()
            for _ in range(SEQUENCE_WINDOW + 10):
                await one.call(NFS, 4, 0, b"", reply_max=100)
            assert not waiting.done()
            if gone:
                for context in acceptor_of(site).table:
                    acceptor_of(site).table.remove(context)
            may_return.set()
            async with asyncio.timeout(60):
                status, _ = await waiting
            assert status == p.NFS4_OK
            assert not (tmp_path / "strong/file").exists()
            assert acceptor_of(site).events()["discarded"] == 0

    run(tmp_path, realm, test)
