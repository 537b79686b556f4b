"""Questions for data building, training and evaluation, in three sets that share no question.

``train`` and ``heldout`` come from one distribution (the main set). ``shifted`` has longer
problems, other wording and far more problems on which the reasoner must correct itself. A hash of
the question decides its set, so they are disjoint by construction, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from specexit.errors import ConfigError
from specexit.tiny.problems import FAMILIES, Problem, make_problem
from specexit.tiny.traces import Trace, make_trace

Split = Literal["train", "heldout", "shifted"]
SPLITS: tuple[Split, ...] = get_args(Split)
CONTRACT = "boxed_integer"

SLIP_SHARE = {"train": 0.055, "heldout": 0.055, "shifted": 0.25}
STEP_WEIGHTS = {
    "train": (0.10, 0.30, 0.32, 0.20, 0.06, 0.02),
    "heldout": (0.10, 0.30, 0.32, 0.20, 0.06, 0.02),
    "shifted": (0.0, 0.0, 0.0, 0.4, 0.35, 0.25),
}


def split_of(question: str) -> Split:
    """The set a question belongs to: 80 % train, 10 % heldout, 10 % shifted."""
    bucket = int(hashlib.sha256(question.encode()).hexdigest()[:8], 16) % 10
    return "heldout" if bucket == 8 else "shifted" if bucket == 9 else "train"


def draw(
    rng: random.Random,
    split: Split,
    *,
    slip_share: float | None = None,
    step_weights: Sequence[float] | None = None,
) -> Problem:
    """One problem of ``split``; the shares of slips and of lengths default to the set's own."""
    weights = step_weights or STEP_WEIGHTS[split]
    share = SLIP_SHARE[split] if slip_share is None else slip_share
    slip = rng.random() < share
    steps = rng.choices(range(1, len(weights) + 1), weights)[0]
    family = rng.choice(FAMILIES)
    if slip and family == "shopping":
        steps = max(3, steps)  # its only additions are those of two goods or more
    while True:
        problem = make_problem(
            rng, family=family, steps=steps, slip=slip, shifted=split == "shifted"
        )
        if split_of(problem.question) == split:
            return problem


def problems(split: Split, n: int, seed: int) -> Iterator[tuple[Problem, Trace]]:
    """``n`` distinct problems with the trace that is expected of the reasoner."""
    if split not in SPLITS:
        raise ConfigError(f"split: {split!r} is not one of {', '.join(SPLITS)}")
    if n < 0:
        raise ConfigError(f"n: {n} is negative")
    rng = random.Random(f"{split} {seed}")
    seen: set[str] = set()
    while len(seen) < n:
        problem = draw(rng, split)
        if problem.question not in seen:
            seen.add(problem.question)
            yield problem, make_trace(problem, rng)


def questions(split: Split, n: int, seed: int = 0) -> list[dict[str, Any]]:
    """``n`` questions as records: what the data builder reads, with the expected trace's facts.

    Fields: ``id``, ``question``, ``gold`` (str), ``contract``, ``family``, ``split``, ``steps``,
    ``slip`` (bool: the first pass ends in a wrong answer), ``first_pass_end`` (paragraphs after
    which the first pass is through, right or wrong), ``derivation_end`` (paragraphs after which
    the expected trace has the right answer), ``paragraphs`` (all of them).
    """
    return [
        {
            "id": f"tiny-{split}-{seed}-{index:05d}",
            "question": problem.question,
            "gold": str(problem.answer),
            "contract": CONTRACT,
            "family": problem.family,
            "split": split,
            "steps": len(problem.steps),
            "slip": problem.slip >= 0,
            "first_pass_end": len(problem.steps) + 1,  # a plan, then a paragraph a step
            "derivation_end": trace.derivation_end,
            "paragraphs": len(trace.paragraphs),
        }
        for index, (problem, trace) in enumerate(problems(split, n, seed))
    ]
