"""A YAML document whose mistakes are told with file, line, key and remedy.

Owns :class:`Document`, :class:`Problem` and :class:`ConfigError`; imports the bounds on texts and the form of keys.
What the document is about, its classes say: the configuration, or a file of rules.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from nfsd.config import Location, dotted
from nfsd.config_text import BadText, check_size

T = TypeVar("T")
_ALIASES = {"asynchronous": "async"}
_AS_WRITTEN = frozenset(("umask", "versions"))
"""Keys whose values are text however they look: YAML takes 022 for an octal number, 22 for another one, 4.0 for 4."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the file."""

    file: str
    line: int
    key: str
    """Dotted, as ``exports[0].squash``; empty for the file as a whole."""
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class ConfigError(Exception):
    """The file cannot be used; ``problems`` says why, in the order of their lines."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda problem: problem.line)
        super().__init__("\n".join(map(str, self.problems)))


class Document:
    """A YAML document that remembers the line of every key."""

    def __init__(self, file: str, needs: str) -> None:
        """``needs``: what there is to write in an empty one."""
        self.file, self.needs = file, needs
        self.problems: list[Problem] = []
        self.lines: dict[Location, int] = {}

    def validated(self, text: str, kind: type[T], classes: Mapping[Location, Any]) -> T:
        """What ``text`` says, as a ``kind``; ``classes`` are those of the mappings in it. Raises ConfigError."""
        data = self.read(text)
        self.fail_if_problems()
        try:
            return TypeAdapter(kind).validate_python(data)
        except ValidationError as error:
            for detail in error.errors():
                if detail["type"] == "too_short" and detail["input"]:
                    continue  # a list shortened by elements with problems of their own
                self.problem(detail["loc"], _message(detail, classes))
            self.fail_if_problems()
            raise

    def read(self, text: str) -> Any:
        """The values in ``text``; mistakes become problems."""
        loader = None
        try:
            check_size(text)
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
            if node is None:
                self.problem((), f"is empty; it needs {self.needs}")
                return None
            return self._construct(loader, node, (), frozenset())
        except BadText as error:
            self.lines[()] = error.line
            self.problem((), str(error))
        except yaml.reader.ReaderError as error:
            self.lines[()] = text.count("\n", 0, error.position) + 1
            self.problem((), f"is not YAML: {error.reason}")
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.lines[()] = mark.line + 1 if mark else 0
            self.problem((), f"is not YAML: {error.problem or error.context}")
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.problem((), f"is not YAML: {error}")
        finally:
            if loader is not None:
                loader.dispose()
        return None

    def _construct(self, loader: yaml.SafeLoader, node: yaml.Node, where: Location, outer: frozenset[int]) -> Any:
        self.lines.setdefault(where, node.start_mark.line + 1)
        if id(node) in outer:
            self.problem(where, "refers to itself")
            return None
        outer |= {id(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self._construct(loader, item, (*where, index), outer) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return self._scalar(loader, node, where)
        self._check_duplicates(node, where)
        loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.lines[*where, "?"] = key_node.start_mark.line + 1
                self.problem((*where, "?"), "a key must be text")
                continue
            key = str(key_node.value)
            self.lines[*where, key] = key_node.start_mark.line + 1
            result[key] = self._construct(loader, value_node, (*where, key), outer)
        return result

    def _scalar(self, loader: yaml.SafeLoader, node: yaml.Node, where: Location) -> Any:
        if not _AS_WRITTEN.isdisjoint(where[-2:]):
            return str(node.value)
        try:
            value = loader.construct_object(node, deep=True)
        except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError):
            # PyYAML's constructors take a value that is tagged, or looks, like one of a type for one.
            self.problem(where, f"{str(node.value)[:40]!r} cannot be read as {node.tag.rpartition(':')[2]}; quote it")
            return None
        if isinstance(value, int) and value.bit_length() > 64:
            self.problem(where, "is too large a number; at most 64 bits")
            return None
        if isinstance(value, str) and not _is_text(value):
            self.problem(where, "holds what no path or name may (NUL, or half of a surrogate pair)")
            return None
        return value

    def _check_duplicates(self, node: yaml.MappingNode, where: Location) -> None:
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in first:
                self.lines[*where, key] = line
                self.problem((*where, key), f"stands here twice, first in line {first[key]}; remove one")
            first.setdefault(key, line)

    def line(self, where: Location) -> int:
        """The line of a key, or of what it is missing from."""
        while where not in self.lines and where:
            where = where[:-1]
        return self.lines.get(where, 0)

    def problem(self, where: Location, message: str) -> None:
        """Something is wrong at ``where``."""
        self.problems.append(Problem(self.file, self.line(where), dotted(where), message))

    def fail_if_problems(self) -> None:
        """Raise ConfigError if something is."""
        if self.problems:
            raise ConfigError(self.problems)


def _is_text(value: str) -> bool:
    """Whether the kernel takes it for a path or a name. YAML's escapes make characters that the file may not hold."""
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _keys(where: Location, classes: Mapping[Location, Any]) -> list[str]:
    """The keys there may be in the mapping at ``where``."""
    known = classes.get(tuple("*" if isinstance(part, int) else part for part in where))
    return [_ALIASES.get(f.name, f.name) for f in dataclasses.fields(known)] if known else []


def _message(detail: Any, classes: Mapping[Location, Any]) -> str:
    """What is wrong and what to do, for an error that pydantic found."""
    kind, where, value, context = detail["type"], detail["loc"], detail["input"], detail.get("ctx") or {}
    match kind:
        case "unexpected_keyword_argument":
            keys = _keys(where[:-1], classes)
            close = difflib.get_close_matches(str(where[-1]), keys, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(keys)}"
            return f"unknown key; {hint}"
        case "missing":
            return "is missing; add it"
        case "literal_error":
            given = "false (YAML reads no and off so; quote it)" if value is False else repr(value)
            close = difflib.get_close_matches(str(value), re.findall(r"'([^']+)'", context["expected"]), 1)
            return f"must be {context['expected']}, not {given}" + (f"; did you mean {close[0]!r}?" if close else "")
        case "dataclass_type" | "dict_type":
            keys = _keys(where, classes)
            return f"must be a mapping with {', '.join(keys)}; found {_name(value)}"
        case "tuple_type":
            return f"must be a list, as in [...]; found {_name(value)}"
        case "too_short":
            return "must have at least one entry"
        case "int_type":
            return f"must be a whole number; found {_name(value)}"
        case "float_parsing" | "float_type":
            return f"must be a number of seconds; found {_name(value)}"
        case "string_type":
            return f"must be text; found {_name(value)}" + ("" if value is None else "; put it in quotes")
        case "bool_type":
            return f"must be true or false; found {_name(value)}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}; found {value}"
        case "less_than_equal":
            return f"must be at most {context['le']}; found {value}"
        case "greater_than":
            return f"must be more than {context['gt']}; found {value}"
        case "multiple_of":
            return f"must be a multiple of {context['multiple_of']}; found {value}"
        case "string_pattern_mismatch":
            return f"{value!r} is not of the form that it must have; see docs/configuration.md"
        case "value_error":
            return f"{value!r} {context['error']}"
    return f"{detail['msg']}; found {_name(value)}"


def _name(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
