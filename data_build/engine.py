"""What the builder asks of an engine: continue token ids, tell the new ids and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Request:
    """Continue `prompt_ids`.

    `key` is unique within a batch; `contract` lets an engine that knows contracts stop early;
    `sampling` holds vLLM's names (empty: greedy); `seed` is read where sampling is random.
    """

    key: str
    prompt_ids: list[int]
    max_tokens: int
    contract: str | None = None
    sampling: dict[str, Any] | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Completion:
    """The continuation.

    Attributes:
        token_ids: new ids, the end-of-sequence id included.
        logprobs: log-probability of each of them.
        finish_reason: `stop`, `length` or `error`.
        cached_tokens: prompt tokens whose KV came from the prefix cache; 0 if the engine does not
            say.
        error: why there is no continuation, where `finish_reason` is `error`.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    cached_tokens: int = 0
    error: str | None = None


class Engine(Protocol):
    """Requests go in with `submit`, completions come out of `collect` in any order."""

    capacity: int
    """Requests that it works on at a time; more may be submitted, they wait."""
    exact_replay: bool
    """Whether results depend in their last bits on what runs beside them, so that a batch must be
    run again whole to give the same bits."""
    max_model_len: int
    """Longest prompt plus continuation."""

    def submit(self, request: Request) -> None:
        """Queue a request."""

    def collect(self) -> list[tuple[str, Completion]]:
        """Work until at least one request has finished; its key and completion."""

    def counters(self) -> dict[str, float]:
        """The engine's own totals since it started, empty where it has none."""

    def forget(self) -> None:
        """Empty the prefix cache, so that a batch does not depend on earlier ones."""

    def close(self) -> None:
        """Free the engine."""
