"""Whether what an export demands of its clients can be done: nobody could use it otherwise.

Owns :func:`unmet_demands`; imports :mod:`nfsd.config`, and what an entry for certificates looks like.
"""

from __future__ import annotations

from collections.abc import Iterator

from nfsd.config import Client, ExportEntry, File, Location, Server
from nfsd.matching import CERTIFICATE, certificate_problem


def unmet_demands(file: File) -> Iterator[tuple[Location, str]]:
    """Each setting that nobody could meet, and what to do."""
    for index, entry in enumerate(file.exports):
        place: Location = ("exports", index)
        roots = file.server.tls is not None and file.server.tls.client_roots is not None
        for number, client in enumerate(entry.clients):
            if client.host.startswith(CERTIFICATE) and not roots:
                yield (
                    (*place, "clients", number),
                    (f"{client.host!r} is for nobody; set server.tls.client_roots, which checks certificates"),
                )
        for where, xprtsec, sec in _settings(entry):
            message = _of_connections(file.server, xprtsec)
            if message:
                yield (*place, *where, "xprtsec"), message
            message = _of_callers(file.server, sec)
            if message:
                yield (*place, *where, "sec"), message


def _settings(entry: ExportEntry) -> Iterator[tuple[Location, tuple[str, ...], tuple[str, ...]]]:
    """Of the export, and of its clients."""
    yield (), entry.xprtsec, entry.sec
    for number, client in enumerate(entry.clients):
        yield ("clients", number), client.xprtsec or (), client.sec or ()


def _of_connections(server: Server, xprtsec: tuple[str, ...]) -> str:
    tls = server.tls
    if xprtsec and "none" not in xprtsec and tls is None:
        return "demands TLS, which takes a certificate; set server.tls"
    if xprtsec == ("mtls",) and tls is not None and tls.client_roots is None:
        return "demands clients' certificates; set server.tls.client_roots, which checks them"
    return ""


def _of_callers(server: Server, sec: tuple[str, ...]) -> str:
    kerberos = [way for way in sec if way.startswith("krb5")]
    if kerberos and server.kerberos is None:
        return f"names {kerberos[0]}, which takes a keytab; set server.kerberos"
    return ""


def problem_by_certificate(client: Client) -> str:
    """What is wrong with an entry for clients by their certificates; empty: nothing."""
    if client.rate is not None or client.weight is not None:
        return f"{client.host!r} can have no rate and no weight: these are by address"
    return certificate_problem(client.host)
