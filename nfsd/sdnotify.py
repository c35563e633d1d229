"""Tells systemd the state of the server (sd_notify(3), Type=notify). Imports nothing of the project."""

from __future__ import annotations

import os
import socket


def notify(**fields: object) -> bool:
    """Send ``FIELD=value`` lines to the service manager. Returns whether there is one that took them."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    address = "\0" + path[1:] if path[0] == "@" else path
    message = "\n".join(f"{name}={str(value).replace(chr(10), ' ')}" for name, value in fields.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
            sock.connect(address)
            sock.send(message.encode())
    except OSError:
        return False
    return True


def watchdog_seconds() -> float | None:
    """How often the service manager wants ``WATCHDOG=1``; None: not at all."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        microseconds = int(os.environ.get("WATCHDOG_USEC", ""))
    except ValueError:
        return None
    return microseconds / 2e6 if microseconds > 0 else None  # twice as often as it must be
