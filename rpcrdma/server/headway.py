"""Whether a peer makes headway: with the record that it has begun, and with the replies that it takes.

Owns :class:`Headway`; imports the record stream.
"""

from __future__ import annotations

from rpcrdma.tcp.stream import RecordStream


class Headway:
    """What one TCP connection had done when it was looked at last."""

    def __init__(self, stream: RecordStream, transfer_time: float) -> None:
        """``transfer_time``: seconds that a record, and the next octet of replies, may take."""
        self._stream, self._time = stream, transfer_time
        self._record_since: float | None = None
        self._unsent_since: float | None = None
        self._sent_then = self._records_then = 0

    def lack(self, now: float, records: int, reading: bool) -> str:
        """What has taken too long; nothing has, if it is empty. ``records``: how many have come whole; ``reading``:
        whether the connection is read from."""
        stream = self._stream
        if records != self._records_then:
            self._record_since, self._records_then = None, records
        if stream.partial and reading:
            self._record_since = now if self._record_since is None else self._record_since
        else:
            self._record_since = None  # reading is held up by us, or nothing is under way
        if not stream.queued or stream.sent_octets != self._sent_then:
            self._unsent_since = None
        if stream.queued and self._unsent_since is None:
            self._unsent_since, self._sent_then = now, stream.sent_octets
        if self._record_since is not None and now - self._record_since >= self._time:
            return "a record did not arrive in time"
        if self._unsent_since is not None and now - self._unsent_since >= self._time:
            return "the peer takes no replies"
        return ""
