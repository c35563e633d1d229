"""What the questions came to: as a table, as JSON, as JUnit's XML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from nfsd.conformance.demands import Item
from nfsd.conformance.run import Answer

_WIDTH = 37
"""Of a demand's name in the table; few are longer."""


def lines(answers: Sequence[Answer]) -> Iterator[str]:
    """A table: one line for each demand, and below it how the server differs."""
    for answer in answers:
        for item in answer.items:
            yield f"{_word(answer):8}{item.level:3}{item.name:{_WIDTH}}  {item.text}".rstrip()
        if answer.differs:
            yield f"           {answer.question}: {answer.differs}"
            if answer.capture:
                yield f"           captured in {answer.capture}"
        if answer.absent:
            yield f"           {answer.question}: {answer.absent}"


def _word(answer: Answer) -> str:
    return "differs" if answer.differs else "absent" if answer.absent else "ok"


def summary(answers: Sequence[Answer]) -> str:
    """The whole in one line."""
    by_word: dict[str, list[Item]] = {}
    for answer in answers:
        by_word.setdefault(_word(answer), []).extend(answer.items)
    wrong, absent = by_word.get("differs", []), by_word.get("absent", [])
    right = len(by_word.get("ok", []))
    text = f"{right + len(wrong) + len(absent)} demands: {right} as demanded, {len(wrong)} not"
    if wrong:
        by_level = ", ".join(f"{sum(i.level == level for i in wrong)} {word}" for level, word in _LEVELS.items())
        text += f" ({by_level})"
    if absent:
        text += f", {len(absent)} about what the server lacks"
    return text


_LEVELS = {"M": "MUST", "S": "SHOULD", "O": "MAY"}


def status(answers: Sequence[Answer]) -> int:
    """The exit status: 1 if the server does not do something that a MUST demands."""
    return int(any(answer.differs and any(item.level == "M" for item in answer.items) for answer in answers))


def as_json(server: str, answers: Sequence[Answer]) -> str:
    """Everything."""
    found = [
        {
            "demand": item.name,
            "level": _LEVELS[item.level],
            "text": item.text,
            "question": answer.question,
            "differs": answer.differs,
            "absent": answer.absent,
            "seconds": round(answer.seconds, 3),
            "capture": answer.capture,
        }
        for answer in answers
        for item in answer.items
    ]
    return json.dumps({"server": server, "answers": found}, indent=1)


def as_junit(server: str, answers: Sequence[Answer]) -> str:
    """One test case for each demand; its class is the document."""
    cases = [(answer, item) for answer in answers for item in answer.items]
    failed = sum(bool(answer.differs) for answer, _ in cases)
    suite = ElementTree.Element(
        "testsuite", name=f"rdma-nfsd conformance {server}", tests=str(len(cases)), failures=str(failed), errors="0"
    )
    for answer, item in cases:
        name = item.name.removeprefix(item.document).strip()
        share = answer.seconds / len(answer.items)
        case = ElementTree.SubElement(suite, "testcase", classname=item.document, name=name, time=f"{share:.3f}")
        if answer.absent:
            ElementTree.SubElement(case, "skipped", message=_plain(answer.absent))
        if answer.differs:
            failure = ElementTree.SubElement(case, "failure", message=_plain(answer.differs))
            failure.text = _plain(f"{item.text}\n{answer.question}: {answer.differs}\n{answer.capture}")
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _plain(text: str) -> str:
    """What XML may contain: a server's octets may be anything."""
    return "".join(
        c if c in "\n\t" or (c >= " " and not "\ud800" <= c <= "\udfff" and c < "\ufffe") else "?" for c in text
    )
