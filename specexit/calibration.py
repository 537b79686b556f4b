"""Thresholds with a finite-sample guarantee: P(risk > epsilon) <= delta over calibration splits.

Method: Learn-then-Test (Angelopoulos et al., arXiv 2110.01052) with fixed-sequence testing. Each
candidate policy is a hypothesis "its risk is above epsilon", tested with the exact binomial
p-value of its losses (a loss is 0 or 1 a question). A chain orders candidates from safe to bold
before any data is seen; testing stops at its first failure. Several chains share delta equally.
All policies before the failures are certified at once, so the one that saves most may be taken.

Why not conformal risk control (arXiv 2208.02814): it bounds the *expected* risk, and needs a loss
that is monotone in the threshold. We promise a high-probability bound, and an exit that comes
later is not always less wrong.

What it assumes: calibration questions and future ones are exchangeable, decoding is greedy, and
the candidates were fixed without looking at the calibration split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from specexit import statistics as stats
from specexit.errors import ConfigError
from specexit.heads.signal import Kind
from specexit.policy import SIGNALS, ExitPolicy, Smoothing, Thresholds
from specexit.replay import Outcomes, Replay, ReplayTable

Risk = Literal["lost", "early"]
"""`lost`: right with full thinking, wrong after the exit. `early`: exit before sufficiency."""
RISKS: tuple[Risk, ...] = get_args(Risk)
Chain = Sequence[ExitPolicy]


@dataclass(frozen=True)
class Certificate:
    """What was promised, and from what.

    Attributes:
        method: how the bound was proved.
        risk: what is bounded; counted over all questions, with or without an exit.
        epsilon, delta: P(risk > epsilon) <= delta.
        n: calibration questions, the skipped ones included.
        skipped: of these, the questions without a usable trace; each counts as a loss.
        exits: whether the policy exits at all; False is the fall-back.
        losses: calibration questions that count as losses under the policy.
        p_value: exact binomial p-value of "risk > epsilon" for it.
        level: delta over the number of chains, which the p-value had to reach.
        upper_bound: exact one-sided upper bound of the risk at `level`, for this policy alone.
        chains, tested, certified: numbers of chains, of hypotheses tested, and of those rejected.
        saving, oracle_share: what the policy saves on the calibration split.
        reason: why it does not exit, None where it does.
    """

    method: str
    risk: Risk
    epsilon: float
    delta: float
    n: int
    exits: bool
    losses: int
    p_value: float
    level: float
    upper_bound: float
    chains: int
    tested: int
    certified: int
    saving: float
    oracle_share: float | None
    reason: str | None = None
    skipped: int = 0

    def as_json(self) -> dict[str, Any]:
        """JSON-able, for the head's metadata."""
        return asdict(self)


def calibrate(
    table: ReplayTable,
    epsilon: float,
    delta: float,
    candidates: Sequence[Chain],
    *,
    risk: Risk = "lost",
    min_oracle_share: float = 0.1,
    skipped: int = 0,
) -> tuple[ExitPolicy, Certificate]:
    """Choose the certified policy that saves most on `table`, the calibration split.

    Args:
        candidates: chains from safe to bold, fixed in advance (`candidate_chains`).
        min_oracle_share: a certified policy that saves less than this share of the oracle's
            saving is not worth an exit: signals without information end here.
        skipped: questions of the split that the table lacks because they failed: they could be
            anything, so they count as losses.

    Returns:
        The policy, `enabled: false` where nothing useful is certified, and its certificate.

    Raises:
        ConfigError: epsilon or delta is out of range, or the split is too small for them.
    """
    n = len(table) + skipped
    check_size(n, epsilon, delta, len(candidates))
    replay = Replay(table)
    flat = [policy for chain in candidates for policy in chain]
    outcomes = replay.evaluate(flat)
    lost = _losses(outcomes, risk).sum(1) + skipped
    saved = replay.think_tokens.sum() - outcomes.tokens.sum(1, dtype=np.int64)
    possible = int((replay.think_tokens - table.t_star).sum())
    choice = _choose(lost, saved, n, epsilon, delta, candidates)
    share = choice.saved / possible if possible else 0.0
    reason = None
    if choice.index is None:
        reason = "no candidate is certified"
    elif share < min_oracle_share:
        reason = (
            f"the best certified policy reaches {share:.1%} of the oracle's saving, "
            f"less than min_oracle_share = {min_oracle_share:.0%}"
        )
    exits = reason is None
    losses = choice.losses if exits else 0
    level = delta / len(candidates)
    certificate = Certificate(
        method="Learn-then-Test, fixed sequence, exact binomial p-values",
        risk=risk,
        epsilon=epsilon,
        delta=delta,
        n=n,
        exits=exits,
        losses=losses,
        p_value=stats.binomial_cdf(losses, n, epsilon),
        level=level,
        upper_bound=stats.binomial_upper_bound(losses, n, level) if exits else 0.0,
        chains=len(candidates),
        tested=choice.tested,
        certified=choice.certified,
        saving=float(choice.saved / replay.think_tokens.sum()) if exits else 0.0,
        oracle_share=share if exits else 0.0,
        reason=reason,
        skipped=skipped,
    )
    if choice.index is None or not exits:
        return flat[0].model_copy(update={"enabled": False}), certificate
    return flat[choice.index], certificate


@dataclass(frozen=True)
class Resampled:
    """How often the promise was broken on resampled calibration splits.

    Attributes:
        repeats, n: number of splits, and questions in each.
        violations: splits whose policy has a risk above epsilon on the population.
        violation_rate, violation_ci: their share, with its exact 95 % interval.
        fallbacks: share of splits that ended in not exiting.
        oracle_share: mean share of the oracle's saving on the population.
    """

    epsilon: float
    delta: float
    repeats: int
    n: int
    violations: int
    violation_rate: float
    violation_ci: stats.Interval
    fallbacks: float
    oracle_share: float

    def as_json(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def resample(
    table: ReplayTable,
    epsilon: float,
    delta: float,
    candidates: Sequence[Chain],
    *,
    n: int | None = None,
    repeats: int = 200,
    seed: int = 0,
    risk: Risk = "lost",
    min_oracle_share: float = 0.1,
) -> Resampled:
    """Check the guarantee: calibrate on many splits and count the broken promises.

    The table stands for the population: splits of `n` questions are drawn from it independently
    (with replacement), and a policy's true risk is its risk on the whole table. That is the
    guarantee's own statement, with no noise from a small test split.

    Args:
        n: questions a split; as many as the table has where None.

    Raises:
        ConfigError: as `calibrate`.
    """
    size = n or len(table)
    check_size(size, epsilon, delta, len(candidates))
    replay = Replay(table)
    flat = [policy for chain in candidates for policy in chain]
    outcomes = replay.evaluate(flat)
    lost = _losses(outcomes, risk)
    saved = replay.think_tokens - outcomes.tokens.astype(np.int64)
    possible = (replay.think_tokens - table.t_star).astype(np.int64)
    true_risk, random = lost.mean(1), np.random.default_rng(seed)
    violations, fallbacks, shares = 0, 0, []
    for _ in range(repeats):
        counts = np.bincount(random.integers(0, len(table), size), minlength=len(table))
        choice = _choose(lost @ counts, saved @ counts, size, epsilon, delta, candidates)
        least = min_oracle_share * float(possible @ counts)
        if choice.index is None or choice.saved < least:
            fallbacks += 1
            shares.append(0.0)
            continue
        violations += bool(true_risk[choice.index] > epsilon)
        shares.append(float(saved[choice.index].sum() / max(1, possible.sum())))
    return Resampled(
        epsilon=epsilon,
        delta=delta,
        repeats=repeats,
        n=size,
        violations=violations,
        violation_rate=violations / repeats,
        violation_ci=stats.clopper_pearson(violations, repeats),
        fallbacks=fallbacks / repeats,
        oracle_share=float(np.mean(shares)),
    )


def candidate_chains(kind: Kind, base: ExitPolicy | None = None) -> list[list[ExitPolicy]]:
    """Chains of thresholds for a head kind, from safe to bold; the grid never sees data.

    `memory` and `mlp`: the threshold of `remain` alone, without smoothing, from 0.0001 to
    400 tokens in steps of 6 %: past sufficiency a head's estimate sinks far below one token, and
    how far tells how sure it is. In the study of DESIGN section 7 `remain` did as well as all
    three. `linear` gets two chains more, with token EWMA and with all three signals.

    Args:
        base: policy whose other settings the candidates keep.
    """
    base = base or ExitPolicy()
    steps = [float(f"{1e-4 * 1.06**i:.4g}") for i in range(262)]

    def sweep(smoothing: Smoothing, names: tuple[Any, ...], floor: float) -> list[ExitPolicy]:
        return [
            base.model_copy(
                update={
                    "signals": names,
                    "smoothing": smoothing,
                    "thresholds": Thresholds(confidence=floor, progress=floor, remain=remain),
                }
            )
            for remain in steps
        ]

    alone = sweep(Smoothing(kind="none"), ("remain",), 0.5)
    if kind != "linear":
        return [alone]
    return [
        alone,
        sweep(Smoothing(alpha=0.3), ("remain",), 0.5),
        sweep(Smoothing(kind="none"), SIGNALS, 0.5),
    ]


def required_size(epsilon: float, delta: float, chains: int = 1) -> int:
    """Fewest questions with which even a policy without one loss could be certified."""
    return math.ceil(math.log(delta / chains) / math.log1p(-epsilon))


def check_size(n: int, epsilon: float, delta: float, chains: int = 1) -> None:
    """Refuse a split that cannot carry the guarantee.

    Raises:
        ConfigError: names the size that it would take.
    """
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0 < value < 1:
            raise ConfigError(f"calibrate.{name}: {value} is not in (0, 1)")
    if not chains:
        raise ConfigError("calibrate.candidates: empty; give at least one chain of policies")
    needed = required_size(epsilon, delta, chains)
    if n < needed:
        raise ConfigError(
            f"calibrate: the split has {n} questions, but epsilon = {epsilon:g} with delta = "
            f"{delta:g} over {chains} chain(s) needs at least {needed}, even if no answer is "
            "lost. Build more calibration data, or ask for less (a larger epsilon or delta)"
        )


@dataclass(frozen=True)
class _Choice:
    index: int | None
    losses: int
    saved: float
    tested: int
    certified: int


def _choose(
    losses: NDArray[Any],
    saved: NDArray[Any],
    n: int,
    epsilon: float,
    delta: float,
    candidates: Sequence[Chain],
) -> _Choice:
    """Fixed-sequence test of every chain; `losses`, `saved` are `[P]` over all their policies."""
    allowed = most_losses(n, epsilon, delta / len(candidates))
    start, tested, certified = 0, 0, []
    for chain in candidates:
        fails = np.flatnonzero(losses[start : start + len(chain)] > allowed)
        passed = int(fails[0]) if len(fails) else len(chain)
        tested += min(passed + 1, len(chain))
        certified += list(range(start, start + passed))
        start += len(chain)
    if not certified:
        return _Choice(None, 0, 0.0, tested, 0)
    top = max((float(saved[i]), -int(losses[i])) for i in certified)
    ties = [i for i in certified if (float(saved[i]), -int(losses[i])) == top]
    best = ties[len(ties) // 2]  # the middle of a plateau is furthest from both of its cliffs
    return _Choice(best, int(losses[best]), float(saved[best]), tested, len(certified))


def most_losses(n: int, epsilon: float, level: float) -> int:
    """Largest k with P(Binomial(n, epsilon) <= k) <= level, -1 if there is none."""
    k = -1
    while k + 1 < n and stats.binomial_cdf(k + 1, n, epsilon) <= level:
        k += 1
    return k


def _losses(outcomes: Outcomes, risk: Risk) -> NDArray[np.int64]:
    return (outcomes.lost if risk == "lost" else outcomes.early).astype(np.int64)
