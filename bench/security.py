"""What Kerberos and TLS cost a server: its CPU per call, in times of what that is with AUTH_SYS in the clear.

All calls, those with AUTH_SYS included, go through :mod:`bench.relays`, so that servers meet them alike. The realm and
its KDC are those of the tests, which only a clone has. Imports :mod:`bench.ganesha` for a server to compare with.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

from bench.calls import Files
from bench.ganesha import Ganesha
from bench.generator import Generator, Loads
from bench.limits import drain, signatures
from bench.nfs3_client import Nfs3Failure
from bench.places import Place
from bench.relays import SERVICE, Security, relayed
from bench.running import Impossible
from bench.scenarios import BY_NAME, PATIENCE, prepare
from bench.servers import LocalServer, NotStarted, RdmaNfsd
from bench.study import Row, Study, Terms, by, cost, markdown, medians, progress
from rpcrdma.gss.mechanism import Acceptance, Credential, Initiation, Sealer

CALLS: Final = ("getattr", "read-4k-32", "write-4k-32", "read-1m-4", "write-1m-4")
SMALL: Final = ("getattr", "read-4k-32")
SECURITIES: Final[tuple[Security, ...]] = ("sys", "krb5", "krb5i", "krb5p", "tls")
CIPHERS: Final[dict[Security, str]] = {"krb5i": "signing", "krb5p": "encryption", "tls": "AES-256-GCM"}
ENCTYPES: Final = (
    "aes256-cts-hmac-sha1-96", "aes128-cts-hmac-sha1-96", "aes256-cts-hmac-sha384-192", "aes128-cts-hmac-sha256-128",
)  # fmt: skip
"""In MIT's own order: the first is what contexts have unless somebody asks for others."""
SEVERAL: Final = (1, 2, 16)
"""Clients at work at the same time: one, one for each of two processors, and a crowd."""
SIZE: Final = 1 << 20
PART: Final = 0.7
"""Of what the library's own cipher makes on one core, a READ of 1 MiB is to make."""
MACHINE: Final = "host/bench.example.org"
"""Who calls, as root: a machine, since Ganesha takes machines for root."""


class Secured(RdmaNfsd):
    """With all kinds of security."""

    export_options: Mapping[str, Any] = {"sec": ["krb5p", "krb5i", "krb5", "sys"]}

    def __init__(self, directory: Path, realm: Path) -> None:
        certificate = {"certificate": str(realm / "server.pem"), "key": str(realm / "server.key")}
        kerberos = {"keytab": str(realm / "keytab"), "users": {f"{MACHINE}@EXAMPLE.ORG": "root"}}
        super().__init__(directory, {"kerberos": kerberos, "tls": certificate})


@contextmanager
def site(directory: Path) -> Iterator[Path]:
    """A directory with keys and certificates of a server; this process has a ticket. Raises Impossible."""
    try:
        kdc = importlib.import_module("tests.support.kdc")
    except ImportError as error:
        raise Impossible(f"it takes a clone, whose tests have a realm of Kerberos: {error}") from None
    if not kdc.PRESENT:
        raise Impossible(kdc.WITHOUT_KDC)
    if shutil.which("openssl") is None:
        raise Impossible("no openssl here")
    with kdc.realm(directory) as realm:
        realm.keytab("nfs/localhost")
        client = realm.keytab(MACHINE, path=directory / "client.keytab")
        request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        files = ["-subj", "/CN=localhost", "-keyout", f"{directory}/server.key", "-out", f"{directory}/server.pem"]
        subprocess.run([*request, *files], check=True, capture_output=True)
        for enctype in ENCTYPES:
            wanted = realm.ticket(MACHINE, keytab=client) | realm.preferring(enctype)
            (directory / enctype).write_text(json.dumps(wanted))
        with mock.patch.dict(os.environ, realm.ticket(MACHINE, keytab=client)):
            yield directory


def ends(realm: Path) -> tuple[Sealer, Sealer]:
    """The client's and the server's end of a context."""
    making, acceptance = Initiation(SERVICE), Acceptance()
    store = {"rcache": "none:", "keytab": f"FILE:{realm / 'keytab'}"}
    making.step(acceptance.step(Credential("nfs", store, True), making.step(b"")))
    return Sealer(making.export()), Sealer(acceptance.export())


def headers(realm: Path) -> dict[str, float]:
    """Microseconds in which the library verifies the header of a call and signs that of its reply, by type of keys."""
    found = {}
    for enctype in ENCTYPES:
        with mock.patch.dict(os.environ, json.loads((realm / enctype).read_text())):
            theirs, ours = ends(realm)
        found[enctype] = timed(partial(signatures, theirs, ours, 100)) / 100
    return found


def ciphers(realm: Path) -> dict[str, float]:
    """Microseconds in which the libraries sign and encrypt 1 MiB in this thread."""
    sealer = ends(realm)[1]
    room = sealer.room(SIZE)
    ground = bytearray(sum(room) + SIZE)
    command = ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-256-gcm"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rate = re.search(r"aes-256-gcm\s+([\d.]+)k", told, re.IGNORECASE)
    return {
        "krb5i": timed(lambda: sealer.sign(ground)),
        "krb5p": timed(lambda: sealer.wrap(ground, room, SIZE)),
        **({"tls": SIZE / float(rate[1]) / 1e-3} if rate else {}),
        "openssl": through_openssl(realm),
    }


def through_openssl(realm: Path) -> float:
    """Microseconds of CPU in which OpenSSL sends 1 MiB of a cached file through TLS 1.3, reading it included: what no
    server in user space that copies no more than this does in less."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(realm / "server.pem", realm / "server.key")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    trusting = ssl.create_default_context(cafile=str(realm / "server.pem"))
    trusting.check_hostname = False
    file = realm / "mebibyte"
    file.write_bytes(os.urandom(SIZE))

    def receive(address: tuple[str, int]) -> None:
        with trusting.wrap_socket(socket.create_connection(address)) as peer:
            drain(peer.fileno())  # as it comes: only who sends is measured

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as threads,
        file.open("rb") as source,
    ):
        received = threads.submit(receive, listener.getsockname())
        with context.wrap_socket(listener.accept()[0], server_side=True) as sending:
            ground = bytearray(SIZE)

            def send() -> None:
                os.preadv(source.fileno(), [ground], 0)
                sending.sendall(ground)

            taken = timed(send)
        received.result()
    return taken


def timed(work: Callable[[], object], times: int = 100) -> float:
    """Microseconds of CPU that it takes."""
    begun = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - begun) / times * 1e6


Kind = type[Secured] | type[Ganesha]


class SecurityStudy(Study):
    """Every kind of security, every call, every server, in turns."""

    name = "security"
    summary = "CPU per call with Kerberos and with TLS, in times of what it is with neither"

    def run(self, terms: Terms) -> list[Row]:
        """The servers in all places in turns."""
        rounds = []
        kinds: list[Kind] = [Secured, *terms.rivals]
        with ExitStack() as ends:
            realm = ends.enter_context(site(Path(ends.enter_context(tempfile.TemporaryDirectory()))))
            servers = [
                (place.name, *begun)
                for place in (Place("tmpfs", terms.directory), *terms.places)
                for kind in kinds
                if (begun := begin(kind, place, realm, terms.uid, ends)) is not None
            ]
            for number in range(terms.rounds):
                rows: list[Row] = [{"on": "", "server": "", "call": "cipher", **ciphers(realm), **headers(realm)}]
                for call in CALLS:
                    for on, server, files in servers if number % 2 == 0 else reversed(servers):
                        progress(f"security, round {number + 1}: {call}, {server.name} on {on}")
                        found = {
                            kind: of(server, files, call, kind, terms.seconds)["cpu_us"] for kind in securities(server)
                        }
                        rows.append({"on": on, "server": server.name, "call": call} | found)
                for on, server, files in servers:
                    if isinstance(server, Secured):
                        progress(f"security, round {number + 1}: several clients on {on}")
                        rows += several(on, server, files, terms.seconds)
                rounds.append(rows)
        return medians(rounds, ("on", "server", "call"))

    def table(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> list[str]:
        """Ratios, and how near the ciphers are."""
        lines = [
            [row["on"], row["server"], row["call"], f"{row['sys']:.2f}", *(times(row, kind) for kind in SECURITIES[1:])]
            for row in rows
            if row["call"] in CALLS
        ]
        heads = ["on", "server", "call", "sys, CPU µs per call", *(f"{kind}, times sys" for kind in SECURITIES[1:])]
        parts = [self._beside_ciphers(rows), _rates(rows), _crowd(rows), _signatures(rows)]
        return [*markdown(heads, lines), *(line for part in parts for line in ["", *part])]

    def _beside_ciphers(self, rows: Sequence[Row]) -> list[str]:
        (alone,) = (row for row in rows if row["call"] == "cipher")
        lines = [
            [row["on"], row["server"], kind, f"{row[kind]:.0f}", f"{alone[kind]:.0f} ({what})",
             f"{alone[kind] / row[kind]:.2f}"]
            for row in rows
            if row["call"] == "read-1m-4"
            for kind, what in CIPHERS.items()
            if kind in row and kind in alone
        ]  # fmt: skip
        if "tls" in alone:
            whole = ["", "OpenSSL by itself", "a file sent through TLS", f"{alone['openssl']:.0f}"]
            lines.append([*whole, f"{alone['tls']:.0f} ({CIPHERS['tls']})", f"{alone['tls'] / alone['openssl']:.2f}"])
        heads = ["on", "server", "READ of 1 MiB", "CPU µs", "the library alone, µs", f"its part (goal ≥ {PART})"]
        return markdown(heads, lines)

    def watched(self, rows: Sequence[Row], bounds: Mapping[str, float]) -> dict[str, float]:
        """The ratios of our own server."""
        return {
            f"{call} with {kind} on {on}": same[0][kind] / same[0]["sys"]
            for (on, server, call), same in by(rows, "on", "server", "call").items()
            if server == Secured.name and call in CALLS
            for kind in SECURITIES[1:]
        }


def _signatures(rows: Sequence[Row]) -> list[str]:
    """What the library takes of a small call with krb5, and what that costs us."""
    (alone,) = (row for row in rows if row["call"] == "cipher")
    lines = [
        [row["on"], row["call"], f"{row['krb5'] - row['sys']:.2f}"] + [f"{alone[enctype]:.2f}" for enctype in ENCTYPES]
        for row in rows
        if row["call"] in SMALL and row["server"] == Secured.name
    ]
    heads = ["on", "call", "krb5 more than sys, CPU µs", *(f"the library alone, {one}" for one in ENCTYPES)]
    return markdown(heads, lines)


def _rates(rows: Sequence[Row]) -> list[str]:
    """What several clients get, in times of what the libraries make in one thread."""
    (alone,) = (row for row in rows if row["call"] == "cipher")
    lines = [
        [row["on"], kind, clients, f"{row[f'{kind} /s']:.0f}", f"{row[kind]:.0f}", f"{alone[kind] / row[kind]:.2f}",
         f"{row[f'{kind} /s'] * alone[kind] / 1e6:.2f}"]
        for row in rows
        for clients in SEVERAL
        if row["call"] == of_several("read-1m-4", clients)
        for kind in CIPHERS
        if kind in row and kind in alone
    ]  # fmt: skip
    heads = [
        "on", "READ of 1 MiB", "clients", "READs/s", "CPU µs", f"its part of the library alone (goal ≥ {PART})",
        f"READs in times of the library on one core (goal ≥ {PART})",
    ]  # fmt: skip
    return markdown(heads, lines)


def _crowd(rows: Sequence[Row]) -> list[str]:
    """Small calls of a crowd, whose contexts are all others."""
    lines = [
        [row["on"], call, SEVERAL[-1], f"{row['sys']:.2f}", times(row, "krb5")]
        for row in rows
        for call in SMALL
        if row["call"] == of_several(call, SEVERAL[-1])
    ]
    return markdown(["on", "call", "clients", "sys, CPU µs per call", "krb5, times sys"], lines)


def of_several(call: str, clients: int) -> str:
    """What a row is called that is about so many clients."""
    return f"{call} of {clients}"


def several(on: str, server: LocalServer, files: Files, seconds: float) -> list[Row]:
    """Rows of several clients at a time: large READs that are enciphered, and a crowd's small calls."""
    asked: list[tuple[str, int, Sequence[Security]]] = [("read-1m-4", clients, tuple(CIPHERS)) for clients in SEVERAL]
    asked += [(call, SEVERAL[-1], ("sys", "krb5")) for call in SMALL]
    rows = []
    for call, clients, kinds in asked:
        row: Row = {"on": on, "server": server.name, "call": of_several(call, clients)}
        for kind in kinds:
            found = of(server, files, call, kind, seconds, clients)
            row |= {kind: found["cpu_us"], f"{kind} /s": found["calls_per_s"]}
        rows.append(row)
    return rows


def times(row: Row, kind: Security) -> str:
    """How many times as much as with AUTH_SYS."""
    return f"{row[kind] / row['sys']:.2f}" if kind in row else "-"


def securities(server: LocalServer) -> tuple[Security, ...]:
    """Those that a server has: only ours has TLS."""
    return SECURITIES if isinstance(server, Secured) else SECURITIES[:-1]


def begin(kind: Kind, place: Place, realm: Path, uid: int, ends: ExitStack) -> tuple[LocalServer, Files] | None:
    """A server in a place, with its files; None where it does not serve."""
    try:
        server = kind(place.path / "security" / kind.name, realm)
    except NotStarted as failure:
        if kind is Secured:
            raise
        progress(str(failure))
        return None
    ends.callback(server.stop)
    server.place = place
    try:
        return server, asyncio.run(prepare(server, uid))
    except Nfs3Failure as failure:  # Ganesha exports not every file system
        progress(f"{server.label}: {failure}")
        return None


def of(
    server: LocalServer, files: Files, call: str, security: Security, seconds: float, clients: int = 0
) -> dict[str, float]:
    """What calls of one client cost; with ``clients``, of so many at a time, which look at few of the replies."""
    scenario = BY_NAME[call]
    server.settle()
    with ExitStack() as ends:
        loads = []
        for _ in range(max(clients, 1)):
            made = scenario.calls(files, scenario.size)
            sock = ends.enter_context(relayed(server.connect("tcp"), security, light=clients > 0))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, PATIENCE)
            loads.append(Generator(sock.fileno(), made if isinstance(made, list) else made.calls, scenario.outstanding))
        return cost(server, loads[0] if len(loads) == 1 else Loads(loads), seconds, events=False)
