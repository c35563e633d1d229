"""The session of :mod:`tests.peer.version_two_session` as ``rdma-nfsd capture`` saw and ``rdma-nfsd decode`` tells it:

    python -m tests.peer.captured_session                       over the embedded iWARP
    python -m tests.peer.captured_session --device 192.0.2.1    over the RDMA device that has this address
    ... --keep FILE                                             leave the capture there

Nothing in the text is the peer's word but the titles, which stand where their time puts them. Times and offsets in
memory are left out, ends of connections have names, and handles and XIDs are numbered: all these are random.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import tempfile
from pathlib import Path

from nfsd.decode import Decoder
from rpcrdma.capture.streams import What
from tests.peer.version_two_session import Transcript, numbered, server, session
from tests.support.captures import capturing


def told(file: Path, transcript: Transcript) -> str:
    """The capture in words, with the transcript's titles."""
    names: dict[str, str] = {}
    lines: list[str] = []
    titles = list(transcript.titles)
    left_out = 0

    def say_left_out() -> None:
        nonlocal left_out
        if left_out:
            lines.append(f"({left_out} messages of CREATE are left out)")
        left_out = 0

    with file.open("rb") as octets:
        for message, (first, *more) in Decoder().messages(octets):
            if message.what is What.REQUEST:
                names[message.destination] = "server"
                names[message.source] = f"client {sum(name != 'server' for name in names.values()) + 1}"
            if message.source not in names or message.what is What.CLOSED:
                continue  # MOUNT, over TCP; the peer hangs up everywhere at once
            if any(begun <= message.time <= ended for begun, ended in transcript.quiet):
                left_out += 1
                continue
            say_left_out()
            while titles and titles[0][0] <= message.time:
                lines += ["", f"## {titles.pop(0)[1]}"]
            lines.append(f"{names[message.source]} > {names[message.destination]}  {first}")
            lines += [f"       {line}" for line in more]
    text = numbered("\n".join(lines))
    return re.sub(r" at 0x[0-9a-f]+", "", text).strip()


def run(base: Path, device: str = "") -> str:
    """Serve from ``base``, capture the session in ``base``/session.pcapng, and tell it."""
    file = base / "session.pcapng"
    with server(base, device) as ports, capturing(base, file):
        transcript = asyncio.run(session(ports, device))
    return told(file, transcript)


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="", metavar="ADDRESS", help="of an RDMA device of this host")
    parser.add_argument("--keep", metavar="FILE", help="where to leave the capture")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(run(Path(directory), parsed.device))
        if parsed.keep:
            shutil.copyfile(Path(directory) / "session.pcapng", parsed.keep)


if __name__ == "__main__":
    main()
