"""The two gateways of docs/clustering.md, on two hosts that keepalived watches: each serves a name, and one of them
goes on with both."""

import contextlib

import pytest

from tests.ceph.elsewhere import ceph
from tests.keepalived.document import file
from tests.keepalived.failover import EVENTS, GRACE, check, fail_over, row, why_not
from tests.keepalived.hosts import CLIENTS, two_hosts, wait_for

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(900), pytest.mark.skipif(bool(why_not()), reason=why_not())]
CAPS = {
    "mon": "allow r", "mds": "allow rw",
    "osd": "allow rwx pool=nfs-records namespace=rdma-nfsd, allow rw tag cephfs data=cephfs",
}  # fmt: skip


def test_one_gateway_goes_on_with_both_names(tmp_path):
    cluster = tmp_path / "cluster"

    def files(host):
        def here(text):
            text = text.replace("/run/", f"{host.run}/").replace("/var/lib/rdma-nfsd", str(host.directory / "state"))
            text = text.replace("/etc/ceph", str(cluster)).replace("/etc/keepalived", str(host.etc))
            return text.replace("    enable_script_security\n", "")

        configuration = file("/etc/keepalived/keepalived.conf")
        if host.name == "two":
            for before, after in (("150", "temporary"), ("100", "150"), ("temporary", "100")):
                configuration = configuration.replace(f"priority {before}\n", f"priority {after}\n")
        server = file("/etc/rdma-nfsd/files1.yaml").replace("exports:\n", f"{GRACE}exports:\n")
        server = server.replace("pseudo: /shared,", "pseudo: /shared, squash: none,")
        server = server.replace("options: {", f"options: {{config: {cluster}/ceph.conf, ")
        return {
            "etc/keepalived.conf": here(configuration),
            "etc/rdma-nfsd": here(file("/etc/keepalived/rdma-nfsd")),
            "etc/files1.yaml": here(server),
            "etc/files2.yaml": here(server.replace("files1", "files2").replace("192.0.2.11", "192.0.2.12")),
        }

    with contextlib.ExitStack() as stack:
        network, one, two = stack.enter_context(two_hosts(tmp_path, files))
        store = stack.enter_context(ceph(["ip", "netns", "exec", network.clients], cluster, CLIENTS))
        caps = [word for pair in CAPS.items() for word in pair]
        store.command("auth", "get-or-create", "client.files", *caps, "-o", str(cluster / "keyrings" / "client.files"))
        one.start()
        two.start()
        wait_for(lambda: two.serves("files2"), lambda: one.said + two.said)
        for event, source, target in zip(EVENTS, (one, two), (two, one), strict=True):
            seen = fail_over(network, source, target, EVENTS[event])
            print(row("CephFS", event, seen))
            check(seen)
            assert target.serves("files1"), target.said
        wait_for(lambda: one.serves("files2"), lambda: one.said + two.said)  # which the lost host had
