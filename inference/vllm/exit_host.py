"""The exit rule on a CPU: plain Python for the tokens, tensors only where a signal is needed.

Same rule and same numbers as `exit_step.step` (a property test holds them together). On a CPU each
tensor operation costs microseconds whatever its size, while reading a tensor costs no
synchronisation, so the cheap way is the other one round: walk the accepted ids in Python, and ask
for the signals (`host_signals`) when a boundary needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from inference.vllm.exit_plan import ExitPlan
from inference.vllm.exit_state import Admission, Limit, Mode
from inference.vllm.host_signals import HostSignals, Layers, Row, Triple
from inference.vllm.record import Event
from specexit.heads.signal import SignalHead
from specexit.split import StepSplitter
from specexit.think import ThinkFormat


@dataclass(frozen=True, slots=True)
class Edit:
    """What a step changes in a request's accepted tokens: `token` ends them after `kept`."""

    kept: int
    token: int


class HostExit:
    """State of S slots, on the CPU.

    Args:
        slots: S.
        head: the signal head, on the CPU.
        think: ids that open and close the thinking.
        splitter: covers one id more than the vocabulary.
        normalise: what the draft does to its features before `fc`, if anything.
        keep_raw: keep every thinking token's raw signals in its row.
    """

    def __init__(
        self,
        slots: int,
        head: SignalHead,
        think: ThinkFormat,
        splitter: StepSplitter,
        *,
        normalise: Callable[[Tensor], Tensor] | None = None,
        keep_raw: bool = False,
    ) -> None:
        self.keep_raw = keep_raw
        self._signals = HostSignals(head, normalise, keep_raw)
        self.start_ids, self.end_ids = think.start_ids, think.end_ids
        self._depth = max(len(self.start_ids), len(self.end_ids), 2) - 1
        self._blank_line = bytes(splitter.contains_blank_line.tolist())
        self._starts = bytes(splitter.starts_with_newline.tolist())
        self._ends = bytes(splitter.ends_with_newline.tolist())
        self._connective = bytes(splitter.is_connective.tolist())
        last = [*self.start_ids[-1:], self.end_ids[-1]]
        self._special = self._marks(last)
        self._no_token = splitter.vocab_size - 1
        self.rows: list[Row | None] = [None] * slots

    def _marks(self, tag_ids: Sequence[int]) -> bytes:
        """1 for every id that the walk must look at: splits and the last ids of the tags."""
        marks = bytearray(a | b for a, b in zip(self._blank_line, self._starts, strict=True))
        for token in tag_ids:
            marks[token] = 1
        return bytes(marks)

    # Requests come and go.

    def admit(self, admissions: Iterable[Admission]) -> None:
        """Fill the slots of requests that enter."""
        for a in admissions:
            if isinstance(a.snapshot, Row):
                self.rows[a.slot] = a.snapshot
                continue
            tail = [*([self._no_token] * self._depth), *a.tail[-self._depth :]]
            self.rows[a.slot] = Row(
                plan=a.plan,
                thinking=a.thinking,
                open_prompt=a.open_prompt,
                closed=a.closed,
                outputs=a.outputs,
                tokens=a.tokens,
                boundary=a.boundary,
                written=a.forced,
                tail=[*tail[-self._depth :], a.last],
                head_state=self._signals.blank,
                held=self._signals.held,
            )

    def snapshot(self, slot: int) -> Row:
        """Take a request's row out of its slot."""
        row, self.rows[slot] = self.rows[slot], None
        assert row is not None
        self._signals.settle(row)
        return row

    def release(self, slot: int) -> Row | None:
        """Empty a slot; its row is returned for what it has recorded."""
        row, self.rows[slot] = self.rows[slot], None
        if row is not None and self.keep_raw:
            self._signals.settle(row)
        return row

    def replay(self, slot: int, features: Tensor, splits: Sequence[bool]) -> None:
        """Move a request over thinking tokens that are computed, not sampled: those of a prompt.

        Args:
            slot: the request's.
            features: `[T, F]`, normalised.
            splits: which of the tokens end a paragraph.
        """
        row = self.rows[slot]
        assert row is not None
        self._signals.replay(row, features, splits)
        if self.keep_raw and splits:
            row.steps.append(len(splits))

    # One step.

    def step(
        self, slot: int, accepted: Sequence[int], layers: Layers, first: int
    ) -> tuple[Edit | None, Event | None]:
        """Advance one request over a step, and end its thinking where the policy says so.

        Args:
            slot: the request's.
            accepted: o_0..o_a, what the target accepted and its own token.
            layers: features of the step's inputs, one tensor a layer.
            first: row of x_0 in them.

        Returns:
            What to change in the accepted ids, and the thinking that ended, if any.
        """
        row = self.rows[slot]
        assert row is not None
        if not self.keep_raw:
            return self._advance(row, accepted, layers, first)
        before = len(row.raw) + row.waiting
        outcome = self._advance(row, accepted, layers, first)
        if count := len(row.raw) + row.waiting - before:
            row.steps.append(count)
        return outcome

    def _advance(
        self, row: Row, accepted: Sequence[int], layers: Layers, first: int
    ) -> tuple[Edit | None, Event | None]:
        """`step`, of a request's row."""
        plan = row.plan
        n = len(accepted)
        if not plan.enabled:
            row.outputs += n
            return None, None
        if row.written and row.written < len(plan.forced):
            token = plan.forced[row.written]
            row.written += 1
            self._advance_tail(row, [token])
            row.outputs += 1
            return Edit(0, token), None
        special = self._special
        marked = special[row.tail[-1]]
        for i in range(n - 1):
            marked |= special[accepted[i]]
        discourse = plan.modes[Mode.DISCOURSE] and row.thinking
        if discourse:
            connective = self._connective
            for token in accepted:
                marked |= connective[token]
        if plan.modes[Mode.STEP_UNIT] and (row.thinking or marked):
            return self._walk_step(row, accepted, layers, first)
        if marked or not row.outputs or row.tokens + n >= plan.limits[Limit.HARD]:
            return self._walk(row, accepted, layers, first)
        if row.thinking:
            self._signals.take(row, layers, first, n)
            row.tokens += n
        self._advance_tail(row, accepted)
        row.outputs += n
        return None, None

    def _walk(
        self, row: Row, accepted: Sequence[int], layers: Layers, first: int
    ) -> tuple[Edit | None, Event | None]:
        """The rule, input by input."""
        event = None
        for i, following in enumerate(accepted):
            kind = self._kind(row, i)
            if kind == "end":
                event = self._natural(row, row.outputs + i)
                row.thinking = False
            elif kind == "open":
                self._reopen(row)
            elif kind is not None:
                splits = self._splits(row, following)
                self._signals.take(row, layers, first + i, 1)
                row.tokens += 1
                row.boundary += splits
                if splits:
                    self._signals.flush(row, True)
                ends = kind == "thought" and self._ends_here(row, splits, row.smoothed)
                if ends and self.end_ids != (following,):  # else it comes by itself: natural
                    return self._inject(row, i)
            self._advance_tail(row, [following])
        row.outputs += len(accepted)
        return None, event

    def _walk_step(
        self, row: Row, accepted: Sequence[int], layers: Layers, first: int
    ) -> tuple[Edit | None, Event | None]:
        """`unit: step`: the mean of the step's signals moves the EWMA once, before any test.

        In the `reference` preset the value from before the step is tested instead, and only at
        the step's first boundary.
        """
        event, reference = None, row.plan.modes[Mode.REFERENCE]
        before, row.step_raw = row.smoothed, []
        seen: list[tuple[int, bool, list[int]]] = []
        for i, following in enumerate(accepted):  # signals first, they need no decision
            kind = self._kind(row, i)
            if kind == "end":
                event = self._natural(row, row.outputs + i)
                row.thinking = False
            elif kind == "open":
                self._reopen(row)
                if row.thinking:
                    before, seen = None, []
            elif kind is not None:
                splits = self._splits(row, following)
                self._signals.take(row, layers, first + i, 1)
                if splits:
                    self._signals.flush(row, True)
                seen.append((i, splits, list(row.tail)))
            self._advance_tail(row, [following])
        self._signals.settle(row)
        value = row.smoothed = self._mixed(row, before)
        tested = False
        for i, splits, tail in seen:
            row.tokens += 1
            row.boundary += splits
            skip = reference and tested
            tested |= splits
            ends = self._ends_here(row, splits, before if reference else value, skip)
            if ends and (i or row.outputs) and self.end_ids != (accepted[i],):
                row.tail = tail
                return self._inject(row, i)
        row.outputs += len(accepted)
        return None, event

    def _kind(self, row: Row, i: int) -> str | None:
        """What input i is: `thought`, `prompt` (a thinking token of the prompt), `end`, `open`."""
        if not i and not row.outputs:
            return "prompt" if row.thinking and row.open_prompt else None
        if not row.thinking:
            return "open"
        return "end" if self._matches(row.tail, self.end_ids) else "thought"

    def _mixed(self, row: Row, before: Triple | None) -> Triple | None:
        """The EWMA after a step whose raw signals are in `row.step_raw`."""
        if not row.step_raw:
            return before
        count = len(row.step_raw)
        c, p, r = (sum(column) / count for column in zip(*row.step_raw, strict=True))
        if before is None or row.plan.modes[Mode.UNSMOOTHED]:
            return c, p, r
        a, b = row.plan.alpha, 1 - row.plan.alpha
        return a * c + b * before[0], a * p + b * before[1], a * r + b * before[2]

    def _ends_here(self, row: Row, splits: bool, value: Triple | None, skip: bool = False) -> bool:
        """`ExitTracker.decide` at the row's last token; `skip`: do not test this boundary."""
        limits = row.plan.limits
        if splits:
            if not skip:
                row.streak = row.streak + 1 if self._passes(row.plan, value) else 0
            if row.tokens >= limits[Limit.SOFT]:
                return True
            if (
                not skip
                and row.streak >= limits[Limit.PATIENCE]
                and row.tokens >= limits[Limit.MIN_TOKENS]
                and row.boundary >= limits[Limit.MIN_BOUNDARIES]
            ):
                return True
        return row.tokens >= limits[Limit.HARD]

    @staticmethod
    def _passes(plan: ExitPlan, smoothed: Triple | None) -> bool:
        if smoothed is None:
            return False
        c, p, r = smoothed
        (tc, tp, tr), (ic, ip, ir) = plan.levels, plan.ignored
        return (ic or c > tc) and (ip or p > tp) and (ir or -r > tr)

    def _inject(self, row: Row, column: int) -> tuple[Edit, Event]:
        """End the thinking after input `column`."""
        self._signals.settle(row)
        begun = self._begun(row.tail)
        token = row.plan.forced[begun]
        smoothed = row.smoothed or row.held
        at = row.outputs + column - begun
        event = Event("injected", at, row.tokens - begun, row.boundary, smoothed)
        row.thinking, row.closed, row.written = False, True, begun + 1
        row.pending.clear()
        row.waiting = 0
        self._advance_tail(row, [token])
        row.outputs += column + 1
        return Edit(column, token), event

    def _natural(self, row: Row, outputs: int) -> Event:
        self._signals.settle(row)
        length = len(self.end_ids)
        smoothed = row.smoothed or row.held
        count = row.tokens - (length - 1)
        return Event("natural", outputs - length, count, row.boundary, smoothed)

    def _reopen(self, row: Row) -> None:
        """Start a thinking where the model has written a think start, if the policy allows it."""
        if row.closed and not row.plan.modes[Mode.REENTER]:
            return
        if self._matches(row.tail, self.start_ids):
            row.thinking = True
            row.boundary = row.streak = 0
            row.smoothed, row.head_state, row.held = None, self._signals.blank, self._signals.held
            row.pending.clear()
            row.waiting, row.step_raw = 0, []

    def _splits(self, row: Row, following: int) -> bool:
        """Whether the row's last id ends a paragraph (`StepSplitter.mask`)."""
        token, previous = row.tail[-1], row.tail[-2]
        return bool(
            self._blank_line[token]
            or (self._starts[token] and self._ends[previous])
            or (row.plan.modes[Mode.DISCOURSE] and self._connective[following])
        )

    @staticmethod
    def _matches(tail: list[int], pattern: tuple[int, ...]) -> bool:
        return bool(pattern) and tail[-len(pattern) :] == list(pattern)

    def _begun(self, tail: list[int]) -> int:
        """How many ids of the think end the model has written right before."""
        for length in range(len(self.end_ids) - 1, 0, -1):
            if self._matches(tail, self.end_ids[:length]):
                return length
        return 0

    def _advance_tail(self, row: Row, ids: Sequence[int]) -> None:
        row.tail = [*row.tail, *ids][-self._depth - 1 :]
