r"""Server-sent events from a byte stream that is cut anywhere.

Works on bytes: a character split over two network packets is no problem, and only `\n`, `\r\n` and
`\r` end a line (line iterators of HTTP libraries also split at U+2028, which JSON may hold raw).
"""

from __future__ import annotations

MAX_EVENT_BYTES = 64 * 1024 * 1024


class SseDecoder:
    """Bytes in, the `data` of complete events out."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that `chunk` completes, in order."""
        events: list[str] = []
        for line in self._lines(chunk):
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data).decode("utf-8", "replace"))
                self._data = []
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value[1:] if value.startswith(b" ") else value)
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r") if chunk else self._after_cr
        chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = chunk.split(b"\n")
        if whole:
            whole[0] = bytes(self._buffer) + whole[0]
            self._buffer.clear()
        self._buffer += rest
        if len(self._buffer) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return whole
