"""What SpecExit remembers about each running request: tensors on the device, one row a slot.

Runner-agnostic: a runner gives every request a slot, calls `admit` and `release` on the host when
requests enter and leave, and `exit_step.step` once per verification step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from inference.vllm.exit_plan import ExitPlan
from specexit.heads.signal import SignalHead, SignalState
from specexit.split import StepSplitter
from specexit.think import ThinkFormat


class Count(IntEnum):
    """Columns of `ExitState.counts [S, 5] int32`: they change with every step."""

    TOKENS = 0  # thinking tokens so far, over all thinkings of the request
    BOUNDARY = 1  # boundaries of the current thinking
    STREAK = 2  # consecutive boundaries that passed
    OUTPUTS = 3  # tokens sampled so far; while it is 0, the step's first input is a prompt token
    FORCED = 4  # forced ids written so far


class Flag(IntEnum):
    """Columns of `ExitState.flags [S, 3] bool`: they change with every step."""

    THINKING = 0  # the request thinks after the inputs seen so far
    CLOSED = 1  # SpecExit has ended a thinking of this request
    SMOOTHED = 2  # `smoothed` holds a value


class Limit(IntEnum):
    """Columns of `ExitState.limits [S, 6] int32`: the request's policy."""

    PATIENCE = 0
    MIN_TOKENS = 1
    MIN_BOUNDARIES = 2
    SOFT = 3  # max_think_tokens
    HARD = 4  # max_think_tokens + 10 %
    FORCED_LENGTH = 5


class Mode(IntEnum):
    """Columns of `ExitState.modes [S, 7] bool`: the request's policy."""

    ENABLED = 0
    UNSMOOTHED = 1  # smoothing.kind: none
    STEP_UNIT = 2  # smoothing.unit: step
    REFERENCE = 3  # preset: reference
    REENTER = 4
    DISCOURSE = 5  # step_split: discourse
    OPEN_PROMPT = 6  # the prompt's last token is a thinking token


# Columns of `floats [S, 7 + 2D]`; the head's state takes the rest: hidden D, total D.
_SMOOTHED, _PARAGRAPH, _LOGITS, _HIDDEN = slice(0, 3), 3, slice(4, 7), 7


@dataclass(frozen=True)
class Snapshot:
    """One slot's changing state, taken when a request is preempted."""

    counts: Tensor
    flags: Tensor
    floats: Tensor
    history: Tensor
    waiting: Tensor

    @property
    def outputs(self) -> int:
        """Tokens sampled when it was taken (waits for the device)."""
        return int(self.counts[Count.OUTPUTS])


@dataclass(frozen=True)
class Admission:
    """A request that enters (or re-enters) a slot.

    Attributes:
        slot: row of the state.
        plan: the request's policy as numbers.
        thinking: whether it thinks after the tokens known so far.
        open_prompt: whether the last prompt token is a thinking token (not part of the opening).
        outputs: tokens sampled so far, 0 for a new request.
        tokens, boundary: thinking tokens and boundaries among the tokens known so far.
        tail: the last known tokens before the next step's first input.
        closed: whether SpecExit has ended a thinking of this request.
        forced: forced ids written so far.
        last: the next step's first input (`exit_host` keeps it).
        snapshot: what `snapshot` gave before a preemption; it wins over the counters above.
    """

    slot: int
    plan: ExitPlan
    thinking: bool
    open_prompt: bool
    outputs: int
    tokens: int
    boundary: int
    tail: Sequence[int]
    closed: bool = False
    forced: int = 0
    last: int = -1
    snapshot: Any = None


class ExitState:
    """State of S slots.

    Args:
        slots: S, the most requests that run at once.
        head: the signal head, on `device`.
        think: the ids that open and close the thinking.
        splitter: covers `vocab_size + 1` ids; the last one stands for "no token".
        device: where everything lives.
        waits: whether an input's projection is known a step before (`mtp_features`).

    Attributes:
        floats: `[S, 7 + 2D] float32`: smoothed signals (3), tokens of the paragraph (1), the
            head's last logits (3), and, for a `memory` head, its GRU state (D) and sum of z (D).
        history: `[S, H] int64`, the tokens before the next input, H = longest tag - 1, at least 1.
        levels: `[S, 4] float32`: sign-normalised thresholds (3) and alpha (1).
        ignored: `[S, 3] bool`, signals that are not looked at.
        forced: `[S, F] int64`, the ids to write when the thinking ends: think end and suffix.
        waiting: `[S, D] float32`, z of the last sampled token; width 0 unless `waits`.
    """

    def __init__(
        self,
        slots: int,
        head: SignalHead,
        think: ThinkFormat,
        splitter: StepSplitter,
        device: torch.device | str,
        *,
        waits: bool = False,
    ) -> None:
        self.head = head
        self.device = torch.device(device)
        self.splitter = splitter.to(self.device)
        self.no_token = splitter.vocab_size - 1
        self.start_ids = think.start_ids
        self.end_ids = think.end_ids
        width = max(len(think.start_ids), len(think.end_ids), 2) - 1
        memory = 2 * head.rows if head.is_stateful else 0

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=self.device)

        self.counts = zeros(slots, len(Count), dtype=torch.int32)
        self.flags = zeros(slots, len(Flag), dtype=torch.bool)
        self.floats = zeros(slots, _HIDDEN + memory, dtype=torch.float32)
        self.history = zeros(slots, width, dtype=torch.int64)
        self.limits = zeros(slots, len(Limit), dtype=torch.int32)
        self.modes = zeros(slots, len(Mode), dtype=torch.bool)
        self.levels = zeros(slots, 4, dtype=torch.float32)
        self.ignored = zeros(slots, 3, dtype=torch.bool)
        self.forced = zeros(slots, len(think.end_ids), dtype=torch.int64)
        self.waiting = zeros(slots, head.rows if waits else 0, dtype=torch.float32)
        self.blank = self._blank(memory)
        # What the host knows about the policies in use; it only ever widens the work of a step.
        self.uses_step_unit = False
        self.uses_discourse = False

    def _blank(self, memory: int) -> Tensor:
        """`[7 + 2D]`, the floats of a thinking that has just begun."""
        row = self.floats.new_zeros(_HIDDEN + memory)
        if memory:
            with torch.inference_mode():
                row[_LOGITS] = self.head.init_state(1).logits[0]
        return row

    def admit(self, admissions: Iterable[Admission]) -> None:
        """Fill the slots of requests that enter: one small copy per tensor, no synchronisation."""
        rows = list(admissions)
        if not rows:
            return
        self._widen_forced(max(len(a.plan.forced) for a in rows))
        width, blank = self.history.shape[1], self.forced.shape[1]
        plans = [a.plan for a in rows]
        slots = self._to_device([a.slot for a in rows], torch.int64)

        def put(target: Tensor, values: Sequence[object], dtype: torch.dtype) -> None:
            target[slots] = self._to_device(values, dtype)

        put(
            self.counts,
            [(a.tokens, a.boundary, 0, a.outputs, a.forced) for a in rows],
            torch.int32,
        )
        put(self.flags, [(a.thinking, a.closed, False) for a in rows], torch.bool)
        put(
            self.history,
            [([self.no_token] * width + list(a.tail))[-width:] for a in rows],
            torch.int64,
        )
        put(self.limits, [p.limits for p in plans], torch.int32)
        put(
            self.modes,
            [(*p.modes, a.open_prompt) for p, a in zip(plans, rows, strict=True)],
            torch.bool,
        )
        put(self.levels, [(*p.levels, p.alpha) for p in plans], torch.float32)
        put(self.ignored, [p.ignored for p in plans], torch.bool)
        put(self.forced, [(*p.forced, *[0] * (blank - len(p.forced))) for p in plans], torch.int64)
        self.floats[slots] = self.blank
        self.waiting[slots] = 0
        for a in rows:
            self.uses_step_unit |= a.plan.modes[Mode.STEP_UNIT] or a.plan.modes[Mode.REFERENCE]
            self.uses_discourse |= a.plan.modes[Mode.DISCOURSE]
            if a.snapshot is not None:
                self._restore(a.slot, a.snapshot)

    def snapshot(self, slot: int) -> Snapshot:
        """Copy one slot's changing state, on the device."""
        return Snapshot(
            self.counts[slot].clone(),
            self.flags[slot].clone(),
            self.floats[slot].clone(),
            self.history[slot].clone(),
            self.waiting[slot].clone(),
        )

    def _restore(self, slot: int, saved: Snapshot) -> None:
        self.counts[slot] = saved.counts
        self.flags[slot] = saved.flags
        self.floats[slot] = saved.floats
        self.history[slot] = saved.history
        self.waiting[slot] = saved.waiting

    def _widen_forced(self, length: int) -> None:
        missing = length - self.forced.shape[1]
        if missing > 0:
            self.forced = torch.nn.functional.pad(self.forced, (0, missing))

    def _to_device(self, values: Sequence[object], dtype: torch.dtype) -> Tensor:
        tensor = torch.tensor(values, dtype=dtype)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    # The parts of packed rows `floats [B, 7 + 2D]`, as views.
    @staticmethod
    def smoothed_of(floats: Tensor) -> Tensor:
        """`[B, 3]` smoothed signals."""
        return floats[:, _SMOOTHED]

    def head_state_of(self, floats: Tensor) -> SignalState:
        """The head's state in packed rows (`memory` kind)."""
        D = self.head.rows
        return SignalState(
            hidden=floats[:, _HIDDEN : _HIDDEN + D],
            total=floats[:, _HIDDEN + D :],
            tokens=floats[:, _PARAGRAPH],
            logits=floats[:, _LOGITS],
        )

    @staticmethod
    def pack(smoothed: Tensor, head_state: SignalState | None, floats: Tensor) -> Tensor:
        """Packed rows from their parts; without a head state the rest of `floats` stays."""
        if head_state is None:
            return torch.cat([smoothed, floats[:, 3:]], 1)
        return torch.cat(
            [
                smoothed,
                head_state.tokens[:, None],
                head_state.logits,
                head_state.hidden,
                head_state.total,
            ],
            1,
        )
