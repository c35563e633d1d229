"""The words of a declaration: scalar aliases and the marks put on them with ``typing.Annotated`` (RFC 4506 section 4).

Owns the vocabulary only, :mod:`rpcrdma.xdr.schema` gives it its meaning; imports nothing of the project.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final


@dataclass(frozen=True, slots=True)
class Scalar:
    """An integer of fixed width (RFC 4506 sections 4.1, 4.2, 4.5)."""

    bits: int
    signed: bool


@dataclass(frozen=True, slots=True)
class Opaque:
    """Octets: exactly ``size`` of them when ``fixed``, at most ``size`` otherwise (sections 4.9 to 4.11)."""

    size: int | None
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Array:
    """Elements one after another: exactly ``size`` when ``fixed``, counted and at most ``size`` otherwise."""

    size: int | None
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """A linked list (section 4.19): each element is preceded by TRUE, the end is FALSE; at most ``size`` elements.

    The element's declaration leaves the link (``nextentry``) out: XDR puts it last, so it is the next element's TRUE.
    """

    size: int | None


@dataclass(frozen=True, slots=True)
class OpenEnum:
    """An enumeration that extensions add to (RFC 8178): an unknown value stays a plain integer."""

    enum: type[IntEnum]


@dataclass(frozen=True, slots=True)
class Case:
    """Discriminants that select a union's arm."""

    values: tuple[int, ...]


class Default:
    """The arm of every discriminant not named in a case."""

    def __repr__(self) -> str:
        return "DEFAULT"


class Ddp:
    """Eligible for direct data placement (RFC 8166 section 3.4.1; for NFS: RFC 8267)."""

    def __repr__(self) -> str:
        return "DDP"


DEFAULT: Final = Default()
DDP: Final = Ddp()

uint32 = Annotated[int, Scalar(32, False)]
int32 = Annotated[int, Scalar(32, True)]
uint64 = Annotated[int, Scalar(64, False)]
int64 = Annotated[int, Scalar(64, True)]


def opaque(limit: int | None = None) -> Opaque:
    """``opaque<limit>`` and ``string<limit>``: octets, because names on the wire need not be UTF-8."""
    return Opaque(limit)


def fixed(size: int) -> Opaque:
    """``opaque[size]``."""
    return Opaque(size, fixed=True)


def array(limit: int | None = None) -> Array:
    """``T<limit>``."""
    return Array(limit)


def fixed_array(size: int) -> Array:
    """``T[size]``."""
    return Array(size, fixed=True)


def chain(limit: int | None = None) -> Chain:
    """A linked list, in Python a list of its elements."""
    return Chain(limit)


def case(*values: int) -> Case:
    """``case V: case W:``."""
    return Case(values)


def open_enum(enum: type[IntEnum]) -> OpenEnum:
    """An enumeration whose unknown values are kept."""
    return OpenEnum(enum)
