"""A Linux client that has more to do than its session has slots is granted more, and uses them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.vm.guest import Guest
from tests.vm.mounts import complaints, load_siw, mount, umount
from tests.vm.network import Network
from tests.vm.server import Server

TRACE = "/sys/kernel/tracing"


def test_a_busy_session_grows(network: Network, directory: Path) -> None:
    """Linux asks for 64 slots; with 128 calls at a time it is told of more (RFC 8881 section 2.10.6.1)."""
    with Server(directory / "server", network) as server, Guest("slots", network, time_limit=500) as guest:
        load_siw(guest)
        mount(guest, server, "4.2")
        guest.run(f"mkdir -p {TRACE}; mount -t tracefs none {TRACE} 2>/dev/null || mountpoint {TRACE}")
        guest.run(f"echo 1 >{TRACE}/events/nfs4/nfs4_sequence_done/enable")
        guest.run(
            "cd /mnt/nfs && fio --name=many --filename=many --rw=randrw --bs=4k --size=8m --ioengine=libaio "
            "--iodepth=128 --direct=1 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output=/tmp/fio.txt "
            "|| { cat /tmp/fio.txt; exit 1; }",
            timeout=200,
            label="fio with 128 calls at a time",
        )
        seen = guest.run(
            f"grep -o 'slot_nr=[0-9]*\\|target_highest_slotid=[0-9]*\\|error=-[0-9]*' {TRACE}/trace | sort | uniq -c",
            label="what the client was told",
        ).output
        slots, targets = (
            [int(number) for number in re.findall(rf"{name}=(\d+)", seen)]
            for name in ("slot_nr", "target_highest_slotid")
        )
        assert max(targets) > 63, seen
        assert max(slots) > 63, seen
        assert "error=-" not in seen, seen
        umount(guest)
        assert complaints(guest) == []
