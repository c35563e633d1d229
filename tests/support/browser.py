"""A headless browser for the page, if this machine has one (Debian: chromium), driven by its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (Debian: apt install chromium)")
_PATIENCE = 120.0


class Browser:
    """One page in a browser. Messages are JSON with a NUL behind, through a pair of pipes."""

    def __init__(self, profile: str, width: int, height: int) -> None:
        assert CHROMIUM is not None
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        # The browser reads from 3 and writes to 4, whatever our numbers are.
        command = [
            "bash", "-c", f'exec 5<&{from_us} 6>&{to_us} 3<&5 4>&6; exec "$@"', "bash",
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-extensions", "--remote-debugging-pipe", "--hide-scrollbars",
            f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=(from_us, to_us), start_new_session=True
        )
        os.close(from_us)
        os.close(to_us)
        self._numbers = itertools.count(1)
        self._received = b""
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **parameters: Any) -> Any:
        """Do something, and wait for the result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE
        while True:
            while b"\0" in self._received:
                line, _, self._received = self._received.partition(b"\0")
                answer = json.loads(line)
                if answer.get("id") == number:
                    assert "error" not in answer, answer["error"]
                    return answer["result"]
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser does not answer {method}"
            octets = os.read(self._from, 1 << 16)
            assert octets, "the browser has ended"
            self._received += octets

    def open(self, url: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + _PATIENCE
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never: {expression}\n{self.text()}"
            time.sleep(0.1)

    def text(self) -> str:
        """What there is to read."""
        return str(self.evaluate("document.body.innerText"))

    def picture(self) -> bytes:
        """A PNG of the whole page."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._to)
        os.close(self._from)


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 1000) -> Iterator[Browser]:
    """A browser for one test."""
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        one = Browser(profile, width, height)
        try:
            yield one
        finally:
            one.close()
