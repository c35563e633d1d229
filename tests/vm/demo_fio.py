"""``make demo DEMO="--fio JOB"``: a fio job of the user's own in a guest that has mounted the server, and its table.

Alone, the server is the demo's own, over the embedded provider. With ``--beside kernel`` rdma-nfsd and the
kernel's server serve one directory of a second guest, over the same software RDMA device, and take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench.fio import FioError, Place, Turn, aligned, busy_seconds, checked, rows, turns
from tests.vm.guest import Guest, GuestError
from tests.vm.network import Namespace
from tests.vm.two_servers import SERVERS, mount, two_guests

DEVICE = "siw"
ABOUT_PROCESS = "Server CPU: of the server's process."
ABOUT_GUEST = (
    "Server CPU: of all the serving guest's processors, also what the kernel does for rdma-nfsd. Under emulation,\n"
    "figures compare with each other only."
)


def job_of(path: Path) -> str:
    """The job file. Raises FioError."""
    try:
        return checked(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise FioError(f"{path}: {error}") from None


def shell(guest: Guest, timeout: float) -> Callable[[str], str]:
    """Runs scripts there, for so many seconds each at most."""

    def run(script: str) -> str:
        try:
            return guest.run(script, timeout=timeout, label="fio").output
        except GuestError as error:
            raise FioError(str(error)) from None

    return run


def alone(guest: Guest, directory: str, cpu: Callable[[], float], job: str, patience: float) -> list[str]:
    """The job on a mount in a guest, once; the table."""
    place = Place("rdma-nfsd", directory, shell(guest, patience), cpu)
    return [*aligned(rows(turns([place], job, 1, lambda _: None))), "", ABOUT_PROCESS]


def beside_kernel(
    job: str, version: str, rounds: int, patience: float, say: Callable[[str], None]
) -> dict[str, Sequence[Turn]]:
    """Boot both guests and run the job on both servers in turns. Raises FioError and what the guests do; OSError
    where no network namespace can be made, which two guests need."""
    say("booting two Linux guests, one of which serves")
    limit = 900 + 2 * rounds * (patience + 60)
    with Namespace() as network, two_guests(network, DEVICE, limit, quiet=True) as (server, client):

        def cpu() -> float:
            return busy_seconds(server.guest.run("head -n 1 /proc/stat", label="cpu time").output)

        places = []
        for name in SERVERS:
            point = f"/mnt/{name}"
            options = mount(client, server.door(DEVICE), name, version, point)
            say(f"guest# mount -t nfs -o {options} ({name}, at {point})")
            places.append(Place(name, point, shell(client, patience), cpu))
        found = turns(places, job, rounds, say)
        for place in places:
            client.run(f"umount {place.directory}", timeout=120)
        return dict(found)


def told(found: dict[str, Sequence[Turn]]) -> list[str]:
    """The table of both servers."""
    return [*aligned(rows(found)), "", *ABOUT_GUEST.splitlines()]
