"""How far a copy is: the line on a terminal."""

import io

from nfsd.commands.progress import Progress


class Terminal(io.StringIO):
    """What was written since the last look."""

    def seen(self) -> str:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


def test_the_line_comes_after_a_second_and_then_now_and_then() -> None:
    now = 100.0
    terminal = Terminal()
    progress = Progress(terminal, shown=True, clock=lambda: now)
    progress.total = 1 << 30
    progress.count(256 << 20)
    progress.show("file")
    assert terminal.seen() == ""
    now += 2
    progress.show("file")
    assert terminal.seen() == "\r\x1b[Kfile" + " " * 24 + "   25%  256M of 1.0G  134.2 MB/s  0:06 left"
    now += 0.1
    progress.show("file")
    assert terminal.seen() == ""
    now += 0.1
    progress.show("\x1b[2Jevil" + "x" * 40)
    assert "\x1b" not in terminal.seen()[4:]
    progress.clear()
    assert terminal.seen() == "\r\x1b[K"
    progress.clear()
    assert terminal.seen() == ""


def test_what_is_not_known_is_not_shown() -> None:
    now = 0.0
    lines = Terminal()
    progress = Progress(lines, shown=True, clock=lambda: now, lines=True)
    progress.total = None
    progress.files = 3
    progress.count(5_000_000)
    now = 10.0
    progress.show("a")
    assert lines.seen() == "a" + " " * 27 + "  3 files done  4.8M  0.5 MB/s\n"
    silent = Progress(lines, shown=False, clock=lambda: now)
    now = 100.0
    silent.show("a")
    silent.clear()
    assert lines.seen() == ""
