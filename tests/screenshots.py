"""The pictures of docs/watching.md: ``python -m tests.screenshots DIR`` draws them of a server under load.

``top.svg`` is what ``rdma-nfsd top`` shows, ``page.png`` is the page on the metrics' port, in chromium.
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from nfsd.admin.asking import ask
from nfsd.admin.screen import Screen
from tests.support.browser import browser
from tests.unit.nfs_client_support import Rig
from tests.unit.test_top import load

COLUMNS, LINES = 132, 46
METRICS = "  metrics: {listen: '127.0.0.1:0'}\n"


def draw_top(state_dir: str, seconds: float = 1.0) -> str:
    """A picture of the live screen."""
    screen = Screen()
    screen.look(ask(state_dir, "stats"))
    time.sleep(seconds)
    screen.look(ask(state_dir, "stats"))
    console = Console(width=COLUMNS, height=LINES, record=True, file=io.StringIO(), force_terminal=True)
    console.print(screen.draw(LINES))
    # Without the fonts that would be fetched from elsewhere.
    return re.sub(r"@font-face {.*?}\s*", "", console.export_svg(title="rdma-nfsd top"), flags=re.DOTALL)


def draw_page(url: str, seconds: float = 20.0) -> bytes:
    """A picture of the page when it has looked for a while."""
    with browser(1180, 1180) as page:
        page.open(url)
        time.sleep(seconds)
        return page.picture()


def main(target: Path) -> None:
    """Draw them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        rig = Rig(Path(place))
        rig.extra += METRICS

        async def test() -> None:
            async with load(rig):
                await asyncio.sleep(1.0)
                picture = await asyncio.to_thread(draw_top, rig.daemon.config.server.state_dir)
                (target / "top.svg").write_text(picture)
                page = f"http://127.0.0.1:{rig.daemon.metrics_port}/"
                (target / "page.png").write_bytes(await asyncio.to_thread(draw_page, page))

        rig.run(test)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
