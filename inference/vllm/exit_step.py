"""One verification step of the exit rule: a pure function of tensors, for all requests at once.

Input-side form: in a step the inputs of a request are x_0 (the last sampled token) and its drafts
x_1..x_K; the target gives o_i after x_i. The row of x_i yields both its signals and o_i. At the
first accepted i whose x_i ends a paragraph and whose smoothed signals pass, `o_i` becomes the
first id of the think end and everything after it is dropped, as if the draft had been rejected
there. The boundary is always an input, so nothing needs to wait for the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from inference.vllm.exit_state import Count, ExitState, Flag, Limit, Mode
from specexit.heads.signal import activate

REJECTED = -1


class StepInputs(NamedTuple):
    """One step of B requests with up to W = K + 1 inputs each.

    Attributes:
        slots: `[B] int64`, rows of the state.
        inputs: `[B, W] int64`, x_0..x_K; columns at and after `num_sampled` hold any valid id.
        sampled: `[B, W] int64`, o_0..o_K; columns at and after `num_sampled` may hold anything.
        num_sampled: `[B] int64`, accepted tokens; 0 where the request does not sample (a chunk of
            its prompt).
        z: `[B, W, D] float32`, the head's projection of the features of x_0..x_K.
    """

    slots: Tensor
    inputs: Tensor
    sampled: Tensor
    num_sampled: Tensor
    z: Tensor


@dataclass(frozen=True)
class StepResult:
    """What a step did.

    Attributes:
        sampled: `[B, W] int64`, with the forced ids, `REJECTED` at and after `num_sampled`.
        num_sampled: `[B] int64`, at most the given ones.
        injected: `[B] int64`, column of the id that ends the thinking here, or -1.
        begun: `[B] int64`, ids of a multi-token think end that the model had already written.
        ended: `[B] int64`, column of the input that completed a natural think end, or -1.
        signals: `[B, W, 3] float32`, raw signals of the inputs.
        takes: `[B, W] bool`, which inputs were thinking tokens and moved the state.
        smoothed: `[B, 3] float32`, after the last of them.
        position: `[B] int64`, index among the outputs of o_0.
        tokens, boundary: `[B] int32`, thinking tokens and boundaries after the step.
    """

    sampled: Tensor
    num_sampled: Tensor
    injected: Tensor
    begun: Tensor
    ended: Tensor
    signals: Tensor
    takes: Tensor
    smoothed: Tensor
    position: Tensor
    tokens: Tensor
    boundary: Tensor


class _Marks(NamedTuple):
    """What each accepted input is; lists of W tensors `[B] bool`.

    `takes`: a thinking token; `opens`: completes a think start; `ends`: completes a natural think
    end; `splits`: ends a paragraph (or a thought, in discourse mode); `decides`: a thinking token
    that was generated, so an exit may fall after it.
    """

    takes: list[Tensor]
    opens: list[Tensor]
    ends: list[Tensor]
    splits: list[Tensor]
    decides: list[Tensor]


@torch.inference_mode()
def step(state: ExitState, batch: StepInputs) -> StepResult:
    """Advance the state over the accepted inputs and end the thinking where the policy says so.

    Writes the slots' rows of `state`; copies nothing to the host.
    """
    slots, sampled, n = batch.slots, batch.sampled, batch.num_sampled
    W = sampled.shape[1]
    counts, flags, floats = state.counts[slots], state.flags[slots], state.floats[slots]
    limits, modes = state.limits[slots], state.modes[slots]
    window = torch.cat([state.history[slots], batch.inputs], 1)
    column = torch.arange(W, device=sampled.device)

    # A think end or suffix that is being written goes on: one id a step, drafts dropped.
    written = counts[:, Count.FORCED]
    writing = (written > 0) & (written < limits[:, Limit.FORCED_LENGTH]) & (n > 0)
    n = torch.where(writing, 1, n)
    batch = batch._replace(num_sampled=n)

    marks, thinking = _classify(state, batch, window, counts, flags, modes)
    signals, floats = _signals(state, batch.z, marks, floats)
    decision = _decide(state, batch, marks, signals, counts, flags, floats, limits, modes)

    cut = torch.where(writing, 0, decision.column)
    stops = cut >= 0
    begun = _begun(state, window, decision.column)
    begin = torch.where(writing, written, begun)
    ids = state.forced[slots].gather(1, begin[:, None].long())
    sampled = torch.where(stops[:, None] & (column == cut[:, None]), ids, sampled)
    n = torch.where(stops, cut + 1, n)
    sampled = torch.where(column < n[:, None], sampled, REJECTED)

    injects = (decision.column >= 0) & ~writing
    before = torch.where(injects, decision.column, W)  # natural ends after the cut never happened
    ended = _last_column(marks.ends, before)
    new_counts = torch.stack(
        [
            decision.tokens,
            decision.boundary,
            decision.streak,
            counts[:, Count.OUTPUTS] + n.int(),
            torch.where(stops, begin.int() + 1, written),
        ],
        1,
    )
    new_flags = torch.stack(
        [thinking & ~injects, flags[:, Flag.CLOSED] | injects, decision.has_smoothed], 1
    )
    H = state.history.shape[1]
    kept = n[:, None] + torch.arange(H, device=n.device)
    state.counts[slots] = new_counts
    state.flags[slots] = new_flags
    state.floats[slots] = torch.cat([decision.smoothed, floats[:, 3:]], 1)
    state.history[slots] = window.gather(1, kept)
    return StepResult(
        sampled=sampled,
        num_sampled=n,
        injected=torch.where(injects, decision.column, -1),
        begun=begun,
        ended=ended,
        signals=signals,
        takes=torch.stack(marks.takes, 1) & (column <= before[:, None]),
        smoothed=decision.smoothed,
        position=counts[:, Count.OUTPUTS].long(),
        tokens=decision.tokens,
        boundary=decision.boundary,
    )


def _classify(
    state: ExitState,
    batch: StepInputs,
    window: Tensor,
    counts: Tensor,
    flags: Tensor,
    modes: Tensor,
) -> tuple[_Marks, Tensor]:
    """What each accepted input is, and whether the request thinks after the last one."""
    W = batch.inputs.shape[1]
    H = window.shape[1] - W
    n = batch.num_sampled
    enabled = modes[:, Mode.ENABLED]
    generated = counts[:, Count.OUTPUTS] > 0
    completes_start = _completes(window, state.start_ids, H)
    completes_end = _completes(window, state.end_ids, H)
    splits = state.splitter.mask(batch.inputs, window[:, H - 1 : -1])
    if state.uses_discourse:
        following = state.splitter.is_connective[batch.sampled.clamp_min(0)]
        splits = splits | (following & modes[:, Mode.DISCOURSE, None])

    may_open = enabled & (modes[:, Mode.REENTER] | ~flags[:, Flag.CLOSED])
    thinking = flags[:, Flag.THINKING] & enabled
    marks = _Marks([], [], [], [], [])
    for i in range(W):
        live = n > i
        ours = live & generated if i == 0 else live
        ends = ours & thinking & completes_end[:, i]
        opens = ours & ~thinking & may_open & completes_start[:, i]
        decides = ours & thinking & ~ends
        takes = decides
        if i == 0:  # a prompt that holds a part of the thinking: its last token counts too
            takes = takes | (live & ~generated & thinking & modes[:, Mode.OPEN_PROMPT])
        thinking = (thinking & ~ends) | opens
        marks.takes.append(takes)
        marks.opens.append(opens)
        marks.ends.append(ends)
        marks.splits.append(splits[:, i] & takes)
        marks.decides.append(decides)
    return marks, thinking


def _signals(state: ExitState, z: Tensor, marks: _Marks, floats: Tensor) -> tuple[Tensor, Tensor]:
    """Raw signals `[B, W, 3]` of the inputs, and the rows with the head's state advanced."""
    head = state.head
    W = z.shape[1]
    if not head.is_stateful:
        logits = z if head.kind == "linear" else head.readout(z)
        opened = torch.stack(marks.opens, 1).any(1)
        floats = torch.where(opened[:, None], state.blank, floats)
        return activate(logits), floats
    collected = []
    for i in range(W):
        old = state.head_state_of(floats)
        new, logits = head.step(old, z[:, i], marks.splits[i])
        advanced = state.pack(state.smoothed_of(floats), new, floats)
        floats = torch.where(marks.takes[i][:, None], advanced, floats)
        floats = torch.where(marks.opens[i][:, None], state.blank, floats)
        collected.append(logits)
    return activate(torch.stack(collected, 1)), floats


class _Decision(NamedTuple):
    """Where the thinking ends (`column [B]`, -1: it does not), and the counters at that point."""

    column: Tensor
    smoothed: Tensor
    has_smoothed: Tensor
    tokens: Tensor
    boundary: Tensor
    streak: Tensor


def _decide(
    state: ExitState,
    batch: StepInputs,
    marks: _Marks,
    signals: Tensor,
    counts: Tensor,
    flags: Tensor,
    floats: Tensor,
    limits: Tensor,
    modes: Tensor,
) -> _Decision:
    """Smooth the signals and apply the rule, column by column (`ExitTracker` is its reference)."""
    levels, ignored = state.levels[batch.slots], state.ignored[batch.slots]
    alpha, sign = levels[:, 3:], signals.new_tensor([1.0, 1.0, -1.0])
    tokens, boundary, streak = counts[:, 0], counts[:, 1], counts[:, 2]
    smoothed = state.floats[batch.slots][:, :3]
    has = flags[:, Flag.SMOOTHED]
    by_step = modes[:, Mode.STEP_UNIT] if state.uses_step_unit else None
    reference = modes[:, Mode.REFERENCE] if state.uses_step_unit else None
    if by_step is not None and reference is not None:
        opened = torch.stack(marks.opens, 1).any(1)
        old, old_has = smoothed, has & ~opened
        has, smoothed = _smooth_step(marks, signals, modes, old, has, alpha)
        tested = torch.where(reference[:, None], old, smoothed)
        testable = ~reference | old_has
        first = torch.ones_like(has)  # no boundary tested yet in this step
    # A single-token end that comes by itself is natural, and what follows it may stay.
    natural = batch.sampled == state.end_ids[0] if len(state.end_ids) == 1 else None

    column = torch.full_like(batch.num_sampled, -1)
    for i in range(signals.shape[1]):
        going = column < 0
        takes, splits = marks.takes[i] & going, marks.splits[i] & going
        tokens = tokens + takes.int()
        mixed = alpha * signals[:, i] + (1 - alpha) * smoothed
        fresh = ~has | modes[:, Mode.UNSMOOTHED]
        mixed = torch.where(fresh[:, None], signals[:, i], mixed)
        moves = takes if by_step is None else takes & ~by_step
        smoothed = torch.where(moves[:, None], mixed, smoothed)
        has = has | moves
        value = smoothed
        boundary = boundary + splits.int()
        tests = splits
        if by_step is not None and reference is not None:
            value = torch.where(by_step[:, None], tested, smoothed)
            tests = splits & (first | ~reference)
            first = first & ~splits
        passes = ((value * sign > levels[:, :3]) | ignored).all(1)
        if by_step is not None:
            passes = passes & (testable | ~by_step)
        streak = torch.where(tests, (streak + 1) * passes.int(), streak)
        enough = (
            tests
            & (streak >= limits[:, Limit.PATIENCE])
            & (tokens >= limits[:, Limit.MIN_TOKENS])
            & (boundary >= limits[:, Limit.MIN_BOUNDARIES])
        )
        enough = enough | (splits & (tokens >= limits[:, Limit.SOFT]))
        enough = enough | (takes & (tokens >= limits[:, Limit.HARD]))
        enough = enough & marks.decides[i]
        if natural is not None:
            enough = enough & ~natural[:, i]
        column = torch.where(enough & going, i, column)
        opens = marks.opens[i] & going
        boundary = torch.where(opens, 0, boundary)
        streak = torch.where(opens, 0, streak)
        has = has & ~(opens if by_step is None else opens & ~by_step)
    return _Decision(column, smoothed, has, tokens, boundary, streak)


def _smooth_step(
    marks: _Marks, signals: Tensor, modes: Tensor, old: Tensor, has: Tensor, alpha: Tensor
) -> tuple[Tensor, Tensor]:
    """`unit: step`: the mean over the step's thinking tokens updates the EWMA once."""
    by_step = modes[:, Mode.STEP_UNIT]
    takes = torch.stack(marks.takes, 1)
    for i, opens in enumerate(marks.opens):  # a thinking that begins here forgets the one before
        has = has & ~(opens & by_step)
        takes[:, : i + 1] &= ~opens[:, None]
    total = takes.sum(1)
    mean = (signals * takes[:, :, None]).sum(1) / total.clamp_min(1)[:, None]
    moves = by_step & (total > 0)
    mixes = has & ~modes[:, Mode.UNSMOOTHED]
    new = torch.where(mixes[:, None], alpha * mean + (1 - alpha) * old, mean)
    return has | moves, torch.where(moves[:, None], new, old)


def _completes(window: Tensor, pattern: tuple[int, ...], H: int) -> Tensor:
    """`[B, W] bool`: whether the ids up to and including each input end with `pattern`."""
    W = window.shape[1] - H
    if not pattern:
        return torch.zeros_like(window[:, H:], dtype=torch.bool)
    begin = H - len(pattern) + 1
    hit = window[:, begin : begin + W] == pattern[0]
    for k, token in enumerate(pattern[1:], 1):
        hit = hit & (window[:, begin + k : begin + k + W] == token)
    return hit


def _begun(state: ExitState, window: Tensor, column: Tensor) -> Tensor:
    """`[B] int64`: how many ids of the think end the model has written right before the exit.

    A model that is cut off inside its own multi-token think end gets the rest of it, not the
    whole sequence again.
    """
    begun = torch.zeros_like(column)
    if len(state.end_ids) == 1:
        return begun
    H = state.history.shape[1]
    last = column.clamp_min(0) + H
    for length in range(1, len(state.end_ids)):
        matches = torch.ones_like(column, dtype=torch.bool)
        for k in range(length):
            at = (last - (length - 1) + k)[:, None]
            matches &= window.gather(1, at)[:, 0] == state.end_ids[k]
        begun = torch.where(matches, length, begun)
    return begun


def _last_column(marks: list[Tensor], before: Tensor) -> Tensor:
    """`[B] int64`: the last marked column at or before `before`, or -1."""
    last = torch.full_like(before, -1)
    for i, mark in enumerate(marks):
        last = torch.where(mark & (before >= i), i, last)
    return last
