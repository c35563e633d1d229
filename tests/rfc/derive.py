"""Derive the table of facts from the RFCs' XDR: names, order, bounds, values and discriminants, and no prose.

    python -m tests.rfc.derive rpc=rfc5531.txt nfs3=rfc1813.txt
        nfs40=rfc7531.x nfs41=rfc5662.x nfs42=rfc7863.x xattr=rfc8276.x

The sources are the XDR files extracted from RFC 7531, 5662, 7863 and 8276 and the texts of RFC 1813 and RFC 5531 (whose
definitions stand in the text; those of RFC 5531 with anonymous unions inside are left out). They are not part of this
project: fetch them from the RFC Editor to derive the table anew.
``tests/rfc/test_declarations.py`` compares the declarations with the table.

A definition becomes ``{"kind": "const" | "enum" | "typedef" | "struct" | "union", ...}``. A field is ``[name, type]``
and a type is text: ``opaque<16>``, ``opaque<>``, ``opaque[8]``, ``nfsace4<>``, ``entry4*``, ``uint32``; sizes are
numbers.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

Facts = dict[str, dict[str, Any]]

_TOKEN = re.compile(r"[A-Za-z_]\w*|-?0x[0-9A-Fa-f]+|-?\d+|[{}()\[\]<>;:,=*]")
_PAGE_BREAK = re.compile(r"^(?:RFC \d+ .*|.*\[Page \d+\])$", re.M)
_IN_TEXT = re.compile(
    r"^[ ]+(?:(?:struct|enum) \w+ \{.*?^ +\};|union \w+ switch \(.*?^ +\};|typedef [^;]+;|const \w+ += \w+;)",
    re.S | re.M,
)
_WORDS = {"int": "int32", "unsigned int": "uint32", "hyper": "int64", "unsigned hyper": "uint64", "unsigned": "uint32"}
_WORDS |= {f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (32, 64)}
_WORDS |= {"long": "int32", "unsigned long": "uint32", "string": "opaque"}


class Parser:
    """Recursive descent over one file's definitions (RFC 4506 section 6.3), program definitions left out."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"^%.*$", "", re.sub(r"/\*.*?\*/", " ", text, flags=re.S), flags=re.M)
        self.tokens = _TOKEN.findall(text)
        self.at = 0
        self.facts: Facts = {"TRUE": {"kind": "const", "value": 1}, "FALSE": {"kind": "const", "value": 0}}

    def next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, token: str) -> bool:
        found = self.peek() == token
        self.at += found
        return found

    def need(self, token: str) -> None:
        found = self.next()
        if found != token:
            raise ValueError(f"{token!r} wanted: {' '.join(self.tokens[max(0, self.at - 12) : self.at + 5])}")

    def number(self, word: str) -> int:
        if re.match(r"-?\d", word):
            return int(word, 0)
        return int(self.facts[word]["value"])

    def parse(self) -> Facts:
        while self.peek():
            word = self.next()
            if word == "program":
                self._skip_program()
                continue
            getattr(self, f"_{word}")()
        return self.facts

    def _skip_program(self) -> None:
        depth, word = 0, ""
        while depth or word != ";":
            word = self.next()
            depth += (word == "{") - (word == "}")

    def _const(self) -> None:
        name = self.next()
        self.need("=")
        self.facts[name] = {"kind": "const", "value": self.number(self.next())}
        self.need(";")

    def _enum(self) -> None:
        name = self.next()
        self.need("{")
        members = {}
        while not self.take("}"):
            member = self.next()
            self.need("=")
            members[member] = self.number(self.next())
            self.facts[member] = {"kind": "member", "value": members[member], "enum": name}
            self.take(",")
        self.need(";")
        self.facts[name] = {"kind": "enum", "members": members}

    def declaration(self) -> list[str | None]:
        """One ``type name;`` as [name, type]; [None, "void"] for void."""
        words = [self.next()]
        if words == ["void"]:
            self.need(";")
            return [None, "void"]
        if words == ["struct"]:
            words = []
        while re.match(r"\w", self.peek()):
            words.append(self.next())
        star = "*" if self.take("*") else ""
        if star:
            words.append(self.next())
        if not words:
            raise ValueError(f"no name: {' '.join(self.tokens[max(0, self.at - 12) : self.at + 5])}")
        name = words.pop()
        kind = _WORDS.get(" ".join(words), " ".join(words)) + star
        for opening, closing in ("<>", "[]"):
            if self.take(opening):
                size = "" if self.peek() == closing else str(self.number(self.next()))
                self.need(closing)
                kind += opening + size + closing
        self.need(";")
        return [name, kind]

    def _typedef(self) -> None:
        name, kind = self.declaration()
        self.facts[str(name)] = {"kind": "typedef", "type": kind}

    def _struct(self) -> None:
        name = self.next()
        self.need("{")
        members = []
        while not self.take("}"):
            members.append(self.declaration())
        self.need(";")
        self.facts[name] = {"kind": "struct", "fields": members}

    def _union(self) -> None:
        name = self.next()
        self.need("switch")
        self.need("(")
        words = []
        while not self.take(")"):
            words.append(self.next())
        discriminant = [words[-1], _WORDS.get(" ".join(words[:-1]), words[-2])]
        self.need("{")
        arms: list[list[Any]] = []
        while not self.take("}"):
            cases: list[str] | None = []
            while self.peek() in ("case", "default"):
                if self.next() == "default":
                    cases = None
                elif cases is not None:
                    cases.append(self.next())
                self.need(":")
            arms.append([cases, *self.declaration()])
        self.need(";")
        self.facts[name] = {"kind": "union", "switch": discriminant, "arms": arms}


def definitions_in_text(text: str) -> str:
    """The definitions that stand, indented, in the text of RFC 1813 (up to those of NLM) or of RFC 5531."""
    sizes = "".join(f"const {name} = {size};" for name, size in re.findall(r"^ +(NFS3_\w+SIZE) (\d+)$", text, re.M))
    if sizes:
        parts = [text[text.index("NFS3_FHSIZE") : text.index("enum nlm4_stats")]]
    else:
        credential = text.index("struct authsys_parms")
        parts = [
            text[text.index("enum auth_flavor") - 80 : text.rindex("12.  The RPC Language")],
            text[credential - 80 :],
        ]
    found = _IN_TEXT.findall(_PAGE_BREAK.sub("", "\n".join(parts)).replace("\f", ""))
    anonymous = re.compile(r"union switch|\bstruct \{")
    return sizes + "\n".join(definition for definition in found if not anonymous.search(definition))


def additions_in_comments(text: str) -> tuple[str, Facts]:
    """RFC 8276 gives additions to existing enumerations and unions as comments."""
    facts: Facts = {}
    for block in re.findall(
        r"Following lines are to be added to (?:enum )?(\w+) \*/\s*/\*(.*?)^\*/$", text, re.S | re.M
    ):
        target, lines = block
        if target.startswith("nfs_"):
            arms = [[[op], name, kind] for op, kind, name in re.findall(r"case (\w+): +(\w+) (\w+);", lines)]
            if arms:
                facts[target] = {"kind": "additional arms", "arms": arms}
        members = {name: int(value) for name, value in re.findall(r"(\w+) += (\d+)", lines)}
        if members:
            facts[target] = {"kind": "additional members", "members": members}
    rest = re.sub(r"^/\* Following lines.*?^\*/$", "", text, flags=re.S | re.M)
    return rest, facts


def derive(path: Path) -> Facts:
    """The facts of one source."""
    text = path.read_text(encoding="ascii", errors="replace")
    if path.suffix == ".txt":
        text = definitions_in_text(text)
    # Names that the files take from elsewhere (RFC 5531, RFC 2203).
    known = "const AUTH_NONE = 0; const AUTH_SYS = 1; const RPCSEC_GSS = 6; "
    rest, additions = additions_in_comments(text)
    facts = Parser(known + rest).parse() | additions
    return {name: fact for name, fact in facts.items() if fact["kind"] != "member"}


def main(arguments: list[str]) -> None:
    """Print the table for the sources given as NAME=FILE."""
    table = {name: derive(Path(file)) for name, file in (argument.split("=", 1) for argument in arguments)}
    lines = []
    for source, facts in table.items():
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(fact)}" for name, fact in sorted(facts.items()))
        lines.append(f" {json.dumps(source)}: {{\n{rows}\n }}")
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main(sys.argv[1:])
