"""Signals on a CPU: rows of features wait as references and are projected when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.vllm.exit_plan import ExitPlan
from inference.vllm.exit_state import Mode
from specexit.heads.signal import SignalHead, SignalState, activate

Triple = tuple[float, float, float]
Layers = Sequence[Tensor]  # features of a step, `[N, F_l]` a layer
MOST_PENDING = 64  # tokens whose features wait, of one request
MOST_ROWS = 256  # steps with more rows are copied from, not referred to


@dataclass(slots=True)
class Row:
    """One request's state: the host's counterpart of a row of `ExitState`.

    In recording mode `raw` are the signals of its thinking tokens so far and `steps` says how many
    of them each step brought.
    """

    plan: ExitPlan
    thinking: bool
    open_prompt: bool
    closed: bool
    outputs: int
    tokens: int
    boundary: int
    written: int
    tail: list[int]
    head_state: SignalState
    held: Triple
    streak: int = 0
    smoothed: Triple | None = None
    pending: list[tuple[Layers, int, int]] = field(default_factory=list)
    waiting: int = 0
    raw: list[Triple] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    step_raw: list[Triple] = field(default_factory=list)


class HostSignals:
    """Head state, EWMA and waiting features of the rows of `HostExit`.

    Attributes:
        blank: the head's state before any token.
        held: the signals that it stands for.
    """

    def __init__(
        self, head: SignalHead, normalise: Callable[[Tensor], Tensor] | None, keep_raw: bool
    ) -> None:
        self.head, self.normalise, self.keep_raw = head, normalise, keep_raw
        with torch.inference_mode():
            self.blank: SignalState = head.init_state(1)
            c, p, r = activate(self.blank.logits)[0].tolist()
        self.held: Triple = (c, p, r)

    def replay(self, row: Row, features: Tensor, splits: Sequence[bool]) -> None:
        """Move a row over known thinking tokens; `features [T, F]` are normalised already."""
        normalise, self.normalise = self.normalise, None
        for i, split in enumerate(splits):
            self.take(row, (features,), i, 1)
            if split:
                self.flush(row, True)
        self.settle(row)
        self.normalise = normalise

    def take(self, row: Row, layers: Layers, first: int, count: int) -> None:
        """Remember where the features of the next thinking tokens lie.

        What waits too long is flushed before, never these tokens: the last may be a boundary's.
        """
        if row.waiting >= MOST_PENDING:
            self.flush(row, False)
        if layers[0].shape[0] > MOST_ROWS:
            layers = [h[first : first + count].clone() for h in layers]
            first = 0
        if row.pending:
            held, begin, length = row.pending[-1]
            if held is layers and begin + length == first:
                row.pending[-1] = (held, begin, length + count)
                row.waiting += count
                return
        row.pending.append((layers, first, count))
        row.waiting += count

    def settle(self, row: Row) -> None:
        """Bring the row's state up to its last token."""
        if row.waiting:
            self.flush(row, False)

    @torch.inference_mode()
    def flush(self, row: Row, at_boundary: bool) -> None:
        """Project the waiting features and advance head state and EWMA over them."""
        parts = [[h[a : a + n] for h in layers] for layers, a, n in row.pending]
        features = torch.cat([torch.cat(part, -1) if len(part) > 1 else part[0] for part in parts])
        if self.normalise is not None:
            features = self.normalise(features)
        z = self.head.project(features)
        row.pending.clear()
        row.waiting = 0
        if not self.head.is_stateful:
            logits = z if self.head.kind == "linear" else self.head.readout(z)
            self._smooth(row, [(c, p, r) for c, p, r in activate(logits).tolist()])
            return
        state, inside = row.head_state, len(z)
        if at_boundary:
            inside -= 1
        raw: list[Triple] = []
        if inside:
            total = state.total + z[:inside].sum(0)
            state = state._replace(total=total, tokens=state.tokens + inside)
            raw = [row.held] * inside
        if at_boundary:
            at = torch.ones(1, dtype=torch.bool)
            state, logits = self.head.step(state, z[inside:], at)
            c, p, r = activate(logits)[0].tolist()
            row.held = (c, p, r)
            raw.append(row.held)
        row.head_state = state
        self._smooth(row, raw)

    def _smooth(self, row: Row, raw: list[Triple]) -> None:
        if self.keep_raw:
            row.raw.extend(raw)
        if row.plan.modes[Mode.STEP_UNIT]:
            row.step_raw.extend(raw)
            return
        if row.plan.modes[Mode.UNSMOOTHED] or not raw:
            row.smoothed = raw[-1] if raw else row.smoothed
            return
        a, b = row.plan.alpha, 1 - row.plan.alpha
        smoothed = row.smoothed
        if smoothed is None:
            smoothed = raw[0]
            raw = raw[1:]
        c, p, r = smoothed
        for nc, np, nr in raw:
            c, p, r = a * nc + b * c, a * np + b * p, a * nr + b * r
        row.smoothed = (c, p, r)
