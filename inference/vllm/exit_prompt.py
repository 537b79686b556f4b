"""Advance a slot over thinking tokens that are not sampled but computed: those of a prompt."""

from __future__ import annotations

import torch
from torch import Tensor

from inference.vllm.exit_state import ExitState, Flag, Mode
from specexit.heads.signal import SignalHead, SignalState, activate


@torch.inference_mode()
def advance(state: ExitState, slot: int, z: Tensor, splits: list[bool]) -> None:
    """Move one slot's head state and smoothed signals over T thinking tokens; nothing exits here.

    A prompt may hold a part of the thinking (a continued answer), or a preempted request's tokens
    are computed again without a snapshot. Counters are the host's to set (`Admission`). With
    `smoothing.unit: step` every token counts as a step of its own.

    Args:
        state: written at `slot`.
        slot: the request's row.
        z: `[T, D] float32` of the tokens.
        splits: which of them end a paragraph, T flags.
    """
    if not splits:
        return
    floats = state.floats[slot : slot + 1]
    if state.head.is_stateful:
        head_state, logits = _paragraphs(state.head, state.head_state_of(floats), z, splits)
    else:
        head_state, logits = None, z if state.head.kind == "linear" else state.head.readout(z)
    signals = activate(logits)
    smoothed = state.smoothed_of(floats)[0]
    alpha = state.levels[slot, 3]
    known = bool(state.flags[slot, Flag.SMOOTHED]) and not bool(state.modes[slot, Mode.UNSMOOTHED])
    if bool(state.modes[slot, Mode.UNSMOOTHED]):
        smoothed = signals[-1]
    else:
        first = smoothed if known else signals[0]
        rest = signals if known else signals[1:]
        age = torch.arange(len(rest) - 1, -1, -1, device=z.device)
        weights = alpha * (1 - alpha) ** age
        smoothed = (1 - alpha) ** len(rest) * first + (weights[:, None] * rest).sum(0)
    state.floats[slot] = state.pack(smoothed[None], head_state, floats)[0]
    state.flags[slot, Flag.SMOOTHED] = True


def _paragraphs(
    head: SignalHead, state: SignalState, z: Tensor, splits: list[bool]
) -> tuple[SignalState, Tensor]:
    """A `memory` head over T tokens, one GRU update a paragraph: `(state, logits [T, 3])`."""
    logits = []
    begin = 0
    for end in [i + 1 for i, split in enumerate(splits) if split]:
        count = end - begin
        if count > 1:
            logits.append(state.logits.expand(count - 1, 3))
            state = _accumulate(state, z[begin : end - 1])
        at_boundary = torch.ones(1, dtype=torch.bool, device=z.device)
        state, at = head.step(state, z[end - 1 : end], at_boundary)
        logits.append(at)
        begin = end
    if begin < len(splits):
        state = _accumulate(state, z[begin:])
        logits.append(state.logits.expand(len(splits) - begin, 3))
    return state, torch.cat(logits)


def _accumulate(state: SignalState, z: Tensor) -> SignalState:
    """Tokens inside a paragraph: only the running sum and the count move."""
    return state._replace(total=state.total + z.sum(0), tokens=state.tokens + len(z))
