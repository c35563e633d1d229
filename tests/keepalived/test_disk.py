"""The active and the passive host of docs/clustering.md with the state directory on the files' disk."""

import asyncio

import pytest

from nfsd.stable.sqlite import SqliteStorage
from tests.keepalived.document import disk_script, file
from tests.keepalived.failover import EVENTS, GRACE, check, fail_over, row, why_not
from tests.keepalived.hosts import two_hosts

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.skipif(bool(why_not()), reason=why_not())]


def first_only(configuration):
    """keepalived's configuration without the second name."""
    parts = configuration.split("\n\n")
    return "\n\n".join(part for part in parts if "files2" not in part) + "\n"


@pytest.mark.parametrize("event", EVENTS)
def test_the_passive_host_goes_on(tmp_path, event):
    disk, mounted = tmp_path / "disk", tmp_path / "srv"
    for made in (disk / "state", disk / "data", mounted):
        made.mkdir(parents=True)
    (disk / "state").chmod(0o700)
    (disk / "data").chmod(0o777)

    async def first_start():
        storage = SqliteStorage(str(disk / "state"))
        await storage.start()
        await storage.close()

    def files(host):
        def here(text):
            text = text.replace("/srv/files1", str(mounted)).replace("/run/", f"{host.run}/")
            return text.replace("/etc/keepalived", str(host.etc)).replace("    enable_script_security\n", "")

        configuration = first_only(file("/etc/keepalived/keepalived.conf"))
        if host.name == "two":
            configuration = configuration.replace("priority 150", "priority 100")
        server = file("disk /etc/rdma-nfsd/files1.yaml").replace("exports:\n", f"{GRACE}exports:\n")
        return {
            "etc/keepalived.conf": here(configuration),
            "etc/rdma-nfsd": here(disk_script()),
            "etc/files1.yaml": here(server),
        }

    asyncio.run(first_start())  # before, takeover would refuse the disk
    with two_hosts(tmp_path, files, disk) as (network, one, two):
        one.start()
        two.start()
        seen = fail_over(network, one, two, EVENTS[event])
    print(row("one disk", event, seen))
    check(seen)
