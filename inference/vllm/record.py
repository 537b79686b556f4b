"""What a worker remembers of each request for its response, for replay and for its counters."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from inference.vllm.exit_step import StepResult
from specexit.policy import SIGNALS

logger = logging.getLogger(__name__)

COLUMNS = 9  # of `pack`
F = TypeVar("F", bound=Callable[..., Any])

NO_EXIT: Mapping[str, Any] = {"exit": "none"}


@dataclass(frozen=True)
class Event:
    """A thinking that ended: `injected` by SpecExit, or `natural`.

    Attributes:
        position: index among the outputs of the think end's first id.
        think_tokens: thinking tokens before it, over all thinkings of the request.
        boundary: boundaries of this thinking.
        signals: smoothed confidence, progress, remain at that point.
    """

    kind: Literal["injected", "natural"]
    position: int
    think_tokens: int
    boundary: int
    signals: tuple[float, float, float]


def pack(result: StepResult, end_length: int) -> Tensor:
    """`[B, 9] float32`: what the host wants to know of a step, in one tensor to copy.

    Columns: position of an injected think end, of a natural one (-1: none), number of sampled
    tokens, thinking tokens, boundary, the three smoothed signals, ids begun by the model.
    """
    at = result.position
    injected = torch.where(result.injected >= 0, at + result.injected - result.begun, -1)
    natural = torch.where(result.ended >= 0, at + result.ended - end_length, -1)
    numbers = [injected, natural, result.num_sampled, result.tokens, result.boundary]
    columns = [x.float()[:, None] for x in numbers]
    return torch.cat([*columns, result.smoothed, result.begun.float()[:, None]], 1)


def unpack(rows: Sequence[Sequence[float]], end_length: int) -> list[Event | None]:
    """Events from the host's copy of `pack`."""
    events: list[Event | None] = []
    for injected, natural, _, tokens, boundary, c, p, r, begun in rows:
        if injected >= 0:
            events.append(
                Event("injected", int(injected), int(tokens - begun), int(boundary), (c, p, r))
            )
        elif natural >= 0:
            # the ids of a multi-token think end before its last one counted as thinking
            count = int(tokens) - (end_length - 1)
            events.append(Event("natural", int(natural), count, int(boundary), (c, p, r)))
        else:
            events.append(None)
    return events


@dataclass
class Story:
    """One request's record in the making."""

    events: list[Event] = field(default_factory=list)
    missing: int = 0
    signals: list[list[float]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)  # thinking tokens of each step
    finished: bool = False


def _locked(method: F) -> F:
    """Run a method of `Journal` under its lock."""

    @wraps(method)
    def locked(self: Journal, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(F, locked)


class Journal:
    """Records of the running requests, raw signals (if kept) of all, and counters.

    An executor with worker processes takes a step's outcome in a second thread while the next
    step runs, so every change is made under a lock.
    """

    def __init__(self, *, keep_signals: bool) -> None:
        self.keep_signals = keep_signals
        self.counters: Counter[str] = Counter()
        self._stories: dict[str, Story] = {}
        self._changed: set[str] = set()
        self._reported = (0, 0)
        self._lock = threading.RLock()

    @_locked
    def reset(self) -> None:
        """Count from zero again."""
        self.counters.clear()
        self._stories.clear()
        self._changed.clear()
        self._reported = (0, 0)

    @_locked
    def open(self, request_id: str) -> None:
        """A request with SpecExit on has arrived."""
        self._stories[request_id] = Story()
        self._changed.add(request_id)
        self.counters["requests"] += 1

    @_locked
    def close(self, request_id: str) -> None:
        """A request has gone; its raw signals stay until they are taken."""
        story = self._stories.get(request_id)
        if story is None:
            return
        self._changed.discard(request_id)
        self.counters["finished"] += 1
        if not story.events:
            self.counters["exits_none"] += 1
        story.finished = True
        if not self.keep_signals:
            del self._stories[request_id]

    @_locked
    def mark_partial(self, request_id: str, missing: int) -> None:
        """Rows of `missing` thinking tokens of the prompt were cached: their states are unknown."""
        self._stories[request_id].missing = missing
        self._changed.add(request_id)

    @_locked
    def note(self, request_id: str, event: Event) -> None:
        """A thinking of a request has ended."""
        story = self._stories.get(request_id)
        if story is None:
            return
        before = story.events[-1].think_tokens if story.events else 0
        story.events.append(event)
        self._changed.add(request_id)
        self.counters[f"exits_{event.kind}"] += 1
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("exit %s", json.dumps({"request": request_id, **asdict(event)}))
        self.counters["think_tokens"] += event.think_tokens - before

    @_locked
    def take_back(self, request_id: str, outputs: int) -> None:
        """Forget events beyond a request's first `outputs` tokens: the engine dropped those."""
        story = self._stories.get(request_id)
        if story is None:
            return
        gone = [e for e in story.events if e.position >= outputs]
        story.events = [e for e in story.events if e.position < outputs]
        for event in gone:
            self.counters[f"exits_{event.kind}"] -= 1
        self._changed.add(request_id)

    @_locked
    def keep(self, request_ids: Sequence[str], result: StepResult) -> None:
        """Append a step's raw signals (recording mode: copies them to the host)."""
        takes, signals = result.takes.cpu(), result.signals.cpu()
        for b, request_id in enumerate(request_ids):
            story = self._stories.get(request_id)
            if story is not None:
                taken = signals[b][takes[b]].tolist()
                story.signals.extend(taken)
                if taken:
                    story.steps.append(len(taken))

    @_locked
    def store(self, request_id: str, raw: Sequence[Sequence[float]], steps: Sequence[int]) -> None:
        """A request's raw signals, and the thinking tokens of each step, all at once."""
        story = self._stories.get(request_id)
        if story is not None and self.keep_signals:
            story.signals, story.steps = [list(s) for s in raw], list(steps)

    @_locked
    def take_changes(self) -> dict[str, Any]:
        """What the scheduler needs: `records` that changed since the last call, by request id,
        and `cost`, the steps and seconds spent on them since then; empty if nothing changed.
        """
        if not self._changed:
            return {}
        changed, self._changed = self._changed, set()
        steps, spent = self.counters["steps"], self.counters["step_microseconds"]
        cost = (steps - self._reported[0], (spent - self._reported[1]) / 1e6)
        self._reported = (steps, spent)
        records = {r: record_of(self._stories[r]) for r in changed if r in self._stories}
        return {"records": records, "cost": cost}

    @_locked
    def take_signals(self) -> dict[str, dict[str, Any]]:
        """Raw signals of the finished requests, by request id; they are forgotten here."""
        done = {r: s for r, s in self._stories.items() if s.finished}
        for request_id in done:
            del self._stories[request_id]
        return {
            request_id: {
                "signals": s.signals,
                "steps": s.steps,
                "events": [asdict(e) for e in s.events],
            }
            for request_id, s in done.items()
        }


def record_of(story: Story) -> dict[str, Any]:
    """The response's record, `kv_transfer_params["specexit"]`.

    Keys: `exit` (`injected`, `natural`, `none`: of the last thinking that ended), `injected` (the
    positions of all injected think ends). After an end also `position`, `think_tokens`,
    `boundary`, `signals` (smoothed) and, for an injected one, `saved_estimate`: the tokens that
    the head believed to remain. `prompt_missing` where thinking tokens of the prompt came from the
    prefix cache, so that the head never saw them.
    """
    record: dict[str, Any] = {
        "exit": story.events[-1].kind if story.events else "none",
        "injected": [e.position for e in story.events if e.kind == "injected"],
    }
    if story.events:
        last = story.events[-1]
        record |= {
            "position": last.position,
            "think_tokens": last.think_tokens,
            "boundary": last.boundary,
            "signals": dict(zip(SIGNALS, last.signals, strict=True)),
        }
        if last.kind == "injected":
            record["saved_estimate"] = last.signals[2]
    if story.missing:
        record["prompt_missing"] = story.missing
    return record


def clipped(
    record: dict[str, Any], outputs: int, before: Mapping[str, Any] = NO_EXIT
) -> dict[str, Any]:
    """The record without a think end that fell behind the request's last token.

    A step may accept more tokens than the request may still write (`max_tokens`, a stop token), or
    than the front end keeps (a stop string).

    Args:
        record: of the step.
        outputs: tokens of the request after it.
        before: its record before the step.
    """
    if record.get("position", -1) < outputs:
        return record
    missing = {k: v for k, v in record.items() if k == "prompt_missing"}
    return {**missing, **before, "injected": [p for p in record["injected"] if p < outputs]}
