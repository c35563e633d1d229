"""What the server proves itself with to callers by Kerberos, and whom it takes them for, from its configuration.

Owns :func:`make_acceptor` and :func:`make_initiator`; imports the keytab's format, :mod:`nfsd.principals` and
:mod:`rpcrdma.gss`.
"""

from __future__ import annotations

from nfsd.config import Kerberos
from nfsd.keytabs import KeytabError, principals_in, realms_of
from nfsd.principals import Principals
from rpcrdma.gss.acceptor import Acceptor
from rpcrdma.gss.initiator import Initiator
from rpcrdma.gss.library import GssError, Unavailable


class KerberosError(Exception):
    """Callers cannot use Kerberos; the message ends with the remedy, behind a semicolon."""


def _fitting(settings: Kerberos) -> list[str]:
    """The principals that the server may be: a keytab may have keys of the same service in several realms. Raises
    KerberosError."""
    wanted = settings.principal
    try:
        principals = principals_in(settings.keytab)
    except KeytabError as error:
        raise KerberosError(str(error)) from None
    return [one for one in principals if one.partition("@")[0] == wanted or one == wanted or not wanted]


def make_initiator(settings: Kerberos) -> Initiator:
    """What the server calls its clients with, as the first that it may be, to be closed. For settings that an acceptor
    has been made of. Raises KerberosError."""
    return Initiator(settings.keytab, next(one for one in _fitting(settings) if one.startswith("nfs/")))


def make_acceptor(settings: Kerberos) -> Acceptor:
    """The server's side of RPCSEC_GSS, to be closed. Raises KerberosError."""
    keytab, wanted = settings.keytab, settings.principal
    name = wanted or "nfs/HOST"
    fits = _fitting(settings)
    realms = realms_of(fits)
    if not realms:
        raise KerberosError(f"{keytab}: has no key of {name}; add one with kadmin: ktadd -k {keytab} {name}")
    service = wanted.partition("@")[0].replace("/", "@", 1) if wanted else "nfs"
    mapping = Principals((*realms, *settings.realms), settings.users)
    try:
        return Acceptor(mapping, keytab=keytab, service=service)
    except Unavailable as error:
        raise KerberosError(f"{error}; install libgssapi-krb5-2 (Debian), or remove server.kerberos") from None
    except GssError as error:
        raise KerberosError(f"{keytab}: {error}; see that it has keys of {name}") from None
