"""The exit statuses of commands that end as by a signal, as a shell has them. Imports nothing."""

from typing import Final

INTERRUPTED: Final = 130
"""SIGINT."""
OUTPUT_GONE: Final = 141
"""SIGPIPE: nobody reads standard output any more."""
TERMINATED: Final = 143
"""SIGTERM."""
