"""Read a stream without doing any input or output: bytes in, "enough" out.

The sync and the async clients differ only in how they get the bytes.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from typing import Any

from specexit.committer import Commit, Committer
from specexit.contracts import Contract

from .result import StreamError, StreamResult
from .sse import SseDecoder


class StreamReader(ABC):
    """Follows one request's events with a committer."""

    def __init__(
        self, contract: Contract, thinking: bool | str, think_start: str, think_end: str
    ) -> None:
        self._contract = contract
        self._thinking = thinking
        self._tags = {"think_start": think_start, "think_end": think_end}
        self._sse = SseDecoder()
        self._committer = Committer(contract, thinking=thinking, **self._tags)
        self._started = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._commit: Commit | None = None
        self._early = False
        self._ended = False
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._events = 0
        self._begin = time.perf_counter()
        self._ttva: float | None = None

    def feed(self, chunk: bytes) -> bool:
        """Read bytes; True when nothing more is needed: the answer is committed, or it is over."""
        for data in self._sse.feed(chunk):
            if data.strip() == "[DONE]":
                self._ended = True
                return True
            try:
                event = json.loads(data)
            except ValueError:
                raise StreamError(
                    f"the server sent an event that is not JSON: {data[:200]!r}"
                ) from None
            if not isinstance(event, dict):
                raise StreamError(f"the server's event is no object: {data[:200]!r}")
            if event.get("error"):
                raise StreamError(f"the server reports an error: {_message(event['error'])}")
            self._events += 1
            self._read(event)
            if self._commit is not None:
                return True
        return False

    @abstractmethod
    def _read(self, event: dict[str, Any]) -> None:
        """Take one event."""

    def _content(self, text: str) -> None:
        if not text:
            return
        if not self._started:
            self._started = True
            if self._reasoning:
                # The server cuts the reasoning out: what it calls content is the answer.
                self._committer = Committer(self._contract, thinking=False)
        self._text.append(text)
        self._take(self._committer.feed(text), early=True)

    def _take(self, commit: Commit | None, *, early: bool) -> None:
        if commit is not None:
            self._commit = commit
            self._early = early
            self._ttva = time.perf_counter() - self._begin

    @property
    def must_abort(self) -> bool:
        """Whether the server still generates although the answer is committed."""
        return self._early and self._finish_reason is None

    def result(self) -> StreamResult:
        """The result, after the last `feed`. Raises `StreamError` if the stream broke off."""
        if self._commit is None:
            if not self._ended and self._finish_reason is None:
                raise StreamError(
                    "the stream ended without a finish reason: the server broke it off"
                )
            self._take(self._committer.close(), early=False)
        text = "".join(self._text)
        position = len(text) if self._commit is None else min(len(text), self._commit.position)
        return StreamResult(
            text=text[:position],
            reasoning="".join(self._reasoning),
            commit=self._commit,
            stopped_early=self.must_abort,
            overshoot=len(text) - position,
            finish_reason=self._finish_reason,
            events=self._events,
            ttva_s=self._ttva,
            elapsed_s=time.perf_counter() - self._begin,
            usage=self._usage,
        )


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def refuse(status: int, body: bytes, url: str) -> StreamError:
    """The error for a response that is not a stream."""
    text = body[:2_000].decode("utf-8", "replace")
    try:
        parsed = json.loads(text)
        text = _message(parsed.get("error", parsed)) if isinstance(parsed, dict) else text
    except ValueError:
        pass
    return StreamError(f"{url} answered {status}: {text}")
