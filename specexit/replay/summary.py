"""The figures of one policy on one table, with intervals over questions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexit import statistics as stats
from specexit.statistics import Interval


@dataclass(frozen=True)
class Summary:
    """Rates are fractions of all n questions; `*_ci` are 95 % intervals, None if not asked for.

    Attributes:
        accuracy, full_accuracy: right answers with the policy, and with full thinking.
        lost, gained: answers that the exit breaks, and repairs; `net_loss` is their difference.
        early: exits before the minimal sufficient boundary.
        exits: traces that exit at all.
        inexact: exits between boundaries, whose answer is that of the boundary before.
        think_tokens, answer_tokens, full_think_tokens, oracle_think_tokens: means a question.
        saving: share of the full thinking's tokens that is saved.
        oracle_share: tokens saved / tokens that the oracle saves; NaN where it saves none.
    """

    n: int
    accuracy: float
    full_accuracy: float
    lost: float
    gained: float
    net_loss: float
    early: float
    exits: float
    inexact: float
    think_tokens: float
    answer_tokens: float
    full_think_tokens: float
    oracle_think_tokens: float
    saving: float
    oracle_share: float
    accuracy_ci: Interval | None = None
    lost_ci: Interval | None = None
    net_loss_ci: Interval | None = None
    think_tokens_ci: Interval | None = None
    saving_ci: Interval | None = None
    oracle_share_ci: Interval | None = None

    def as_json(self) -> dict[str, Any]:
        """JSON-able; NaN becomes null, intervals become pairs."""
        return {name: _json_value(value) for name, value in asdict(self).items()}


def summarise(
    *,
    full_correct: NDArray[np.bool_],
    think_full: NDArray[Any],
    think_oracle: NDArray[Any],
    correct: NDArray[np.bool_],
    lost: NDArray[np.bool_],
    gained: NDArray[np.bool_],
    early: NDArray[np.bool_],
    think: NDArray[Any],
    answer: NDArray[Any],
    exited: NDArray[np.bool_],
    is_exact: NDArray[np.bool_],
    seed: int | None = None,
) -> Summary:
    """Figures of one policy from its per-question outcomes, each `[n]`.

    Args:
        seed: of the bootstrap; None leaves the intervals out.
    """
    n = len(correct)
    saved = think_full.astype(np.float64) - think
    possible = think_full.astype(np.float64) - think_oracle
    intervals: dict[str, Interval] = {}
    if seed is not None:
        intervals = {
            "accuracy_ci": stats.wilson(int(correct.sum()), n),
            "lost_ci": stats.clopper_pearson(int(lost.sum()), n),
            "net_loss_ci": stats.paired_bootstrap(full_correct, correct, seed),
            "think_tokens_ci": stats.bootstrap_mean(think, seed),
            "saving_ci": stats.bootstrap_ratio(saved, think_full, seed),
            "oracle_share_ci": stats.bootstrap_ratio(saved, possible, seed),
        }
    return Summary(
        n=n,
        accuracy=float(correct.mean()),
        full_accuracy=float(full_correct.mean()),
        lost=float(lost.mean()),
        gained=float(gained.mean()),
        net_loss=float(lost.mean() - gained.mean()),
        early=float(early.mean()),
        exits=float(exited.mean()),
        inexact=float((~is_exact).mean()),
        think_tokens=float(think.mean()),
        answer_tokens=float(answer.mean()),
        full_think_tokens=float(think_full.mean()),
        oracle_think_tokens=float(think_oracle.mean()),
        saving=_ratio(saved.sum(), think_full.sum()),
        oracle_share=_ratio(saved.sum(), possible.sum()),
        **intervals,
    )


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below else float("nan")


def _json_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json_value(v) for v in value]
    return None if isinstance(value, float) and np.isnan(value) else value
