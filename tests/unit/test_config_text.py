"""A configuration that nobody in their senses wrote: `check` names the file, the line and the bound, at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nfsd.config_file import ConfigError, load, parse
from nfsd.config_text import MOST_CHARACTERS, MOST_LEVELS, MOST_OCTETS, MOST_VALUES

REPO = Path(__file__).parents[2]
GOOD = 'server:\n  listen: ["tcp://127.0.0.1:2049"]\nexports:\n'
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
MERGE_BOMB = "a0: &a0 {k: v, l: v}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)


def check(file: Path) -> tuple[int, str]:
    """``rdma-nfsd check`` as a user runs it, with no more memory and time than it has any use for."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
        "from nfsd.cli import main; sys.exit(main(['check', '--config', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (BOMB, 5, f"is too much: at most {MOST_VALUES} values"),
        (MERGE_BOMB, 5, f"is too much: at most {MOST_VALUES} values"),
        ("\n\nserver: " + "[" * 500 + "]" * 500, 3, f"is nested too deeply: at most {MOST_LEVELS} levels"),
        ("server: " + "{a: " * 5000, 1, "is nested too deeply"),
        ("server:\n  state_dir: " + "x" * (MOST_CHARACTERS + 1), 2, "is too long a value"),
        ("server: &s\n  nfs4: *s\n", 2, "refers to itself"),
        (GOOD + "  - {path: /, anonuid: 0x" + "f" * 4000 + "}\n", 4, "is too large a number; at most 64 bits"),
        (GOOD + "  - {path: /, anonuid: " + "9" * 4000 + "}\n", 4, "is too large a number; at most 64 bits"),
        (GOOD + "  - {path: /, id: 2001-99-99}\n", 4, "'2001-99-99' cannot be read as timestamp; quote it"),
        (GOOD + "  - {path: /, id: !!int ''}\n", 4, "cannot be read as int; quote it"),
        (GOOD + "  - {path: /, async: !!bool maybe}\n", 4, "cannot be read as bool; quote it"),
        (GOOD + "  - {path: /, [a, b]: c}\n", 4, "a key must be text"),
        (GOOD + "  - {path: /}\nexports: []\n", 5, "stands here twice, first in line 3; remove one"),
        (GOOD + '  - {path: "/\x00"}\n', 4, "is not YAML: special characters are not allowed"),
        (GOOD + "  - {path: /, id: !!timestamp x}\n", 4, "'x' cannot be read as timestamp; quote it"),
        (GOOD + '  - {path: "/\\0"}\n', 4, "holds what no path or name may"),
        (GOOD + '  - {path: "/\\ud800"}\n', 4, "holds what no path or name may"),
        ('server: {state_dir: "/\\0"}\n', 1, "holds what no path or name may"),
        ("a: !!python/object/apply:os.system [id]\n", 1, "unknown key"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else None,
)  # fmt: skip
def test_what_is_beyond_the_bounds_is_refused_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    file = tmp_path / "exports.yaml"
    file.write_text(text)
    status, errors = check(file)
    assert status == 2, errors
    assert "Traceback" not in errors
    assert f"{file}:{line}: " in errors
    assert says in errors


def test_what_is_not_a_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for file, kind in ((pipe, "a pipe"), (tmp_path, "a directory"), (Path("/dev/zero"), "a device")):
        assert check(file) == (2, f"{file}: is not a file but {kind}; name a file\n")
    assert "cannot be read: No such file" in check(tmp_path / "absent")[1]


def test_a_file_that_is_too_large_or_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "exports.yaml"
    file.write_bytes(b"#" * (MOST_OCTETS + 1))
    with pytest.raises(ConfigError, match="is too large: a configuration has at most"):
        load(str(file))
    file.write_bytes(b"server:\n  state_dir: \xff\n")
    with pytest.raises(ConfigError, match=r"exports\.yaml:2: is not UTF-8 text \(octet 21\)"):
        load(str(file))


def test_aliases_that_a_person_would_write_are_fine(tmp_path: Path) -> None:
    text = (
        'x: &x [{host: 10.0.0.1, squash: none}]\nserver: {listen: ["tcp://127.0.0.1:2049"]}\nexports:\n'
        "  - &first {path: %s, pseudo: /a, clients: *x}\n  - {<<: *first, path: %s, pseudo: /b}\n"
    )
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    found = None
    with pytest.raises(ConfigError) as caught:
        parse(text % (tmp_path / "one", tmp_path / "two"), str(tmp_path / "exports.yaml"))
    assert [problem.key for problem in caught.value.problems] == ["x"], "there is no key x; nothing else is wrong"
    text = text.replace("x: &x [{host: 10.0.0.1, squash: none}]\n", "").replace("*x", "[10.0.0.1]")
    found = parse(text % (tmp_path / "one", tmp_path / "two"), str(tmp_path / "exports.yaml"))
    assert [(export.pseudo, export.clients) for export in found.exports] == [
        ("/a", ("10.0.0.1",)),
        ("/b", ("10.0.0.1",)),
    ]


def test_many_exports_fit(tmp_path: Path) -> None:
    text = GOOD
    for number in range(1500):
        (tmp_path / str(number)).mkdir()
        text += f"  - {{path: {tmp_path}/{number}, pseudo: /{number}, squash: none, clients: [10.0.0.0/8, 10.1.0.1]}}\n"
    assert len(parse(text, str(tmp_path / "exports.yaml")).exports) == 1500
