from typing import Any, Generic, TypeVar

_Seat = TypeVar("_Seat")
_G = TypeVar("_G", bound="Part[Any]")

class Bag(Generic[_Seat]):
    """Things to be picked from by chance."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Without arguments."""

    def __len__(self) -> int: ...
    def add(self, thing: _Seat) -> None:
        """Add one that is not there."""

    def discard(self, thing: _Seat) -> bool:
        """Take one out; whether it was there."""

    def some(self, count: int) -> list[_Seat]:
        """So many of them; all, if there are no more. (Not one after the other: those that came together would be
        compared with each other only.)"""

class Part(Generic[_G]):
    """A network, or a host, as a part of the network that it is in, with how much it has."""

    has: int
    """Connections, or what else is counted."""
    def __init__(self, key: str, parent: _G | None, floor: int = 1) -> None:
        """``floor``: what its parts weigh at least."""

    @property
    def key(self) -> str: ...
    @property
    def parent(self) -> _G | None: ...
    @property
    def floor(self) -> int: ...
    @property
    def weight(self) -> int:
        """Among the parts of its parent; of some kinds it tells what the part has but for a factor of two, so that it
        seldom changes."""

    @property
    def _ranks(self) -> dict[int, Bag[_G]]: ...
    @property
    def most(self) -> int:
        """The weight of the part that weighs most."""

    def chain(self) -> list[_G]:
        """From all there is to this."""

    def fullest(self) -> _G:
        """The part that weighs most, or one of those."""

    def some_fullest(self, count: int) -> list[_G]:
        """Parts that weigh most, so many if there are as many; none, if there are no parts."""

    def crowd(self) -> _G:
        """The smallest part of parts that is more than modest: where there is too much."""

    def grow(self) -> None:
        """It has one more, and so has what it is in."""

    def shrink(self) -> None:
        """It has one less."""

    def find(self) -> None:
        """Let it be found, and what it is in."""

    def hide(self) -> None:
        """Let it not be found any more, nor what has no other parts that are."""
