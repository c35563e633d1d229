from typing import Any

from nfsd.state.accounts import Ledger
from nfsd.state.clients import Client
from rpcrdma.parts import Part

class Figures:
    """What all accounts come to, and the bounds below which there is room for anybody: base of
    :class:`~nfsd.state.accounts.Ledger`."""

    def __init__(self, share: int, easy: int) -> None:
        """``share``: octets that one host may have; ``easy``: that all may have before some are kept for those who have
        little."""

    @property
    def octets(self) -> int:
        """Of all hosts."""

    @property
    def share(self) -> int: ...
    @property
    def easy(self) -> int: ...

class HostAccount:
    """What one host makes the server remember."""

    delegations: int
    copies: int
    cached_octets: int
    """Reply cache promised to its sessions."""
    relieved: float
    """When its own clients were last searched for what could give way."""
    def __init__(self, ledger: Ledger, host: str) -> None: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def host(self) -> str: ...
    @property
    def address(self) -> str:
        """The host itself, whoever speaks for it."""

    @property
    def networks(self) -> tuple[Part[Any], ...]:
        """Those that it is in, the smallest first."""

    @property
    def octets(self) -> int: ...
    @property
    def clients(self) -> dict[Client, None]:
        """Client records, NFSv3's lock manager's among them."""

    def charge(self, octets: int) -> None:
        """Something was made, or (negative) is gone."""

    @property
    def left(self) -> int:
        """How much there is room for as it is."""
