"""From labelled traces to what one training sequence needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from specexit.dataset import Trace
from specexit.errors import ConfigError

ConfidenceLabel = Literal["confidence", "confidence_agrees"]


@dataclass(frozen=True)
class Thinking:
    """Labels of the T thinking tokens of a sequence.

    Attributes:
        start: index of the first one in `ids`.
        labels: `[T, 3] float32`: confidence, progress, remain.
        boundary: `[T] bool`, tokens that end a paragraph.
        weight: `[T] float32`, 0 for tokens that do not count.
    """

    start: int
    labels: Tensor
    boundary: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Example:
    """One sequence.

    Attributes:
        id: the trace's.
        ids: `[n] int64`, prompt and output.
        is_target: `[n] bool`, tokens that the draft is trained to predict.
        thinking: None where the signals are not trained on it.
    """

    id: str
    ids: Tensor
    is_target: Tensor
    thinking: Thinking | None

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, length: int) -> Example:
        """The first `length` tokens."""
        if len(self) <= length:
            return self
        thinking = self.thinking
        if thinking is not None:
            keep = max(0, length - thinking.start)
            thinking = (
                replace(
                    thinking,
                    labels=thinking.labels[:keep],
                    boundary=thinking.boundary[:keep],
                    weight=thinking.weight[:keep],
                )
                if keep
                else None
            )
        return Example(self.id, self.ids[:length], self.is_target[:length], thinking)

    def token_counts(self, steps: int) -> list[int]:
        """Targets of each draft step: the first that row 0 can reach at step k is token k + 2."""
        return [int(self.is_target[k + 2 :].sum()) for k in range(steps)]


def signal_weights(thinking: Thinking, boundary_weight: float, boundaries_only: bool) -> Tensor:
    """`[T] float32` weights of the signal losses."""
    if boundaries_only:
        return thinking.weight * thinking.boundary
    return thinking.weight * (1 + (boundary_weight - 1) * thinking.boundary)


def make_examples(
    traces: Iterable[Trace],
    *,
    span: Literal["full", "minimal", "both"],
    confidence: ConfidenceLabel,
    keep_redundant: bool,
    think_end_ids: Sequence[int],
    with_signals: bool = True,
) -> list[Example]:
    """Sequences of the kept traces, in order.

    Raises:
        ConfigError: a label is missing, not finite or out of range; names the trace.
    """
    examples = []
    for trace in traces:
        ids = torch.tensor(trace.prompt_ids + trace.output_ids, dtype=torch.int64)
        is_output = torch.arange(len(ids)) >= len(trace.prompt_ids)
        thinking = _thinking(trace, confidence, keep_redundant) if with_signals else None
        if span != "minimal":
            examples.append(Example(trace.id, ids, is_output, thinking))
        elif thinking is not None:
            examples.append(Example(trace.id, ids, torch.zeros_like(is_output), thinking))
        if span != "full":
            examples.append(_minimal(trace, think_end_ids))
    return examples


def _minimal(trace: Trace, think_end_ids: Sequence[int]) -> Example:
    """Prompt, thinking up to the sufficient point, think end, answer."""
    assert trace.t_star is not None
    output = trace.output_ids
    if trace.t_star < trace.think_end - trace.think_start:
        answer = output[trace.think_end + len(think_end_ids) :]
        kept = output[: trace.think_start + trace.t_star]
        output = [*kept, *think_end_ids, *answer]
    ids = torch.tensor(trace.prompt_ids + output, dtype=torch.int64)
    return Example(trace.id, ids, torch.arange(len(ids)) >= len(trace.prompt_ids), None)


def _thinking(trace: Trace, confidence: ConfidenceLabel, keep_redundant: bool) -> Thinking:
    T = trace.think_end - trace.think_start
    columns = {
        "confidence": trace.confidence,
        "progress": trace.progress,
        "remain": trace.remain,
    }
    cut = T if trace.t_star is None else trace.t_star  # `label.keep_redundant: false` ends there
    length = cut if len(trace.confidence or ()) == cut else T
    keep_redundant = keep_redundant and length == T
    for name, values in columns.items():
        if values is None or len(values) != length:
            found = "missing" if values is None else f"{len(values)} values"
            raise ConfigError(
                f"data: trace {trace.id}: {name} has {found} for {T} thinking tokens; "
                "build the data again"
            )
        high = math.inf if name == "remain" else 1 + 1e-6
        for t, value in enumerate(values):
            if not (math.isfinite(value) and 0 <= value <= high):
                limits = "[0, inf)" if name == "remain" else "[0, 1]"
                raise ConfigError(
                    f"data: trace {trace.id}: {name}[{t}] = {value} is not in {limits}; "
                    "`specexit data verify` says what is wrong with the data"
                )
    labels = torch.zeros(T, 3)
    labels[:length] = torch.tensor([trace.confidence, trace.progress, trace.remain]).T
    boundary = torch.zeros(T, dtype=torch.bool)
    boundary[[b - 1 for b in trace.boundaries if 0 < b <= T]] = True
    if confidence == "confidence_agrees":
        labels[:, 0] *= _agrees(trace, T)
    weight = torch.ones(T)
    if not keep_redundant and trace.t_star is not None:
        weight[trace.t_star :] = 0
    return Thinking(len(trace.prompt_ids) + trace.think_start, labels, boundary, weight)


def _agrees(trace: Trace, T: int) -> Tensor:
    """`[T]`: 1 where the trial answer of the token's paragraph is the final answer."""
    agrees = torch.zeros(T)
    begin, last = 0, 0.0
    for b, probed, same in zip(trace.boundaries, trace.probed, trace.trial_agrees, strict=True):
        if probed:
            last = float(same)
            agrees[begin:b] = last
            begin = b
    agrees[begin:] = last
    return agrees
