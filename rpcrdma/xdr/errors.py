"""What the codecs raise; imports nothing."""

from __future__ import annotations


class XdrError(ValueError):
    """Octets that are not the declared type, or a value that the declared type cannot carry."""


class XdrOverflow(XdrError):
    """The encoder's limit is reached: nothing is wrong with the value, it just does not fit."""


class SchemaError(TypeError):
    """A declaration that cannot be compiled; raised while the declaring module is imported."""
