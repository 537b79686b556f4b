"""Random replay tables, and tables whose best policy is known."""

from __future__ import annotations

import numpy as np

from specexit.dataset import Trace
from specexit.replay import ReplayTable


def trace(
    number: int, boundaries: list[int], tokens: int, agrees: list[bool], *, gold: bool = True
) -> Trace:
    """A trace whose trial answer is `1` where it agrees and `0` where it does not."""
    k_star = next((k for k in range(len(agrees)) if all(agrees[k:])), None)
    return Trace(
        id=f"q{number}",
        question=f"question {number}",
        gold="1" if gold else None,
        contract='{"kind": "boxed_integer"}',
        split="test",
        prompt_ids=[1, 2, 3],
        output_ids=[9] + [5] * tokens + [8, 6, 6, 6],
        think_start=1,
        think_end=1 + tokens,
        token_logprobs=[-0.1] * tokens,
        boundaries=boundaries,
        probed=[True] * len(boundaries),
        trial_answers=["1" if a else "0" for a in agrees],
        trial_agrees=agrees,
        trial_correct=[a if gold else None for a in agrees],
        trial_logprob=[-0.2] * len(boundaries),
        trial_tokens=[2] * len(boundaries),
        answer="1",
        correct=True if gold else None,
        k_star=k_star,
        t_star=None if k_star is None else boundaries[k_star],
        confidence=[0.5] * tokens,
        progress=[0.5] * tokens,
        remain=[0.5] * tokens,
        keep=True,
        drop_reason=None,
        meta="{}",
    )


def random_table(seed: int, n: int = 12, *, steps: bool = False) -> ReplayTable:
    """Traces of 1-60 tokens with random boundaries, answers and signals."""
    random = np.random.default_rng(seed)
    traces, signals, step = [], [], []
    for i in range(n):
        tokens = int(random.integers(1, 60))
        inner = np.flatnonzero(random.random(tokens) < 0.2) + 1
        boundaries = [0, *inner.tolist()]
        agrees = (random.random(len(boundaries)) < 0.6).tolist()
        traces.append(trace(i, boundaries, tokens, agrees))
        raw = random.random((tokens, 3))
        raw[:, 2] *= 400
        signals.append(raw.astype(np.float32))
        step.append(np.cumsum(random.random(tokens) < 0.4))
    return ReplayTable.from_traces(traces, signals, steps=step if steps else None)


def known_table(
    n: int, *, seed: int = 0, noise: float = 0.0, shuffled: bool = False, wrong: float = 0.0
) -> ReplayTable:
    """Ten paragraphs of 10 tokens; the answer is right from paragraph k* on, `remain` says so.

    `remain` at a boundary is the true distance, times log-normal noise; confidence and progress
    are uninformative. With noise 0 the best policy exits exactly at k* for any threshold in
    (0, 10). `wrong` is the share of traces whose full answer is wrong. `shuffled` permutes
    the signals over all tokens of the table: they carry no information.
    """
    random = np.random.default_rng(seed)
    traces, signals = [], []
    for i in range(n):
        k_star = int(random.integers(1, 11))
        boundaries = list(range(0, 101, 10))
        made = trace(i, boundaries, 105, [k >= k_star for k in range(11)])
        if random.random() < wrong:
            made = Trace(**{**vars(made), "correct": False, "trial_correct": [False] * 11})
        traces.append(made)
        left = np.maximum(k_star * 10 - np.arange(1, 106), 0)
        remain = (left + 0.5) * np.exp(noise * random.normal(size=105))
        signals.append(np.stack([random.random(105), random.random(105), remain], 1))
    if shuffled:
        flat = np.concatenate(signals)
        flat = flat[random.permutation(len(flat))]
        signals = list(flat.reshape(n, 105, 3))
    return ReplayTable.from_traces(traces, signals)
