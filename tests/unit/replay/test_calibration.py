"""The guarantee holds on populations whose true risk is known, and fails towards not exiting."""

from __future__ import annotations

import numpy as np
import pytest

from specexit import statistics as stats
from specexit.calibration import (
    calibrate,
    candidate_chains,
    most_losses,
    required_size,
    resample,
)
from specexit.errors import ConfigError
from specexit.heads.signal import KINDS
from specexit.policy import ExitPolicy, Smoothing, Thresholds
from specexit.replay import Replay, ReplayTable
from tests.unit.replay.tables import known_table

CHAINS = candidate_chains("memory")


@pytest.fixture(scope="module")
def noisy() -> ReplayTable:
    return known_table(1500, seed=1, noise=0.7)


def test_noiseless_signal_is_certified_and_close_to_the_oracle() -> None:
    policy, certificate = calibrate(known_table(400), 0.01, 0.05, CHAINS)
    assert certificate.exits
    assert certificate.losses <= most_losses(400, 0.01, 0.05)
    assert certificate.oracle_share is not None
    assert certificate.oracle_share >= 1.0
    assert 1 < policy.thresholds.remain < 11


def test_policy_that_saves_most_among_the_certified_is_taken(noisy: ReplayTable) -> None:
    policy, certificate = calibrate(noisy, 0.05, 0.05, CHAINS)
    replay = Replay(noisy)
    lost = replay.evaluate(CHAINS[0]).lost.sum(1)
    allowed = most_losses(1500, 0.05, 0.05)
    first_failure = int(np.flatnonzero(lost > allowed)[0])
    saved = -replay.evaluate(CHAINS[0]).tokens.sum(1)
    chosen = CHAINS[0].index(policy)
    assert saved[chosen] == saved[:first_failure].max()
    assert certificate.losses == lost[chosen]
    assert certificate.p_value <= certificate.level
    assert certificate.upper_bound <= 0.05
    assert (certificate.tested, certificate.certified) == (first_failure + 1, first_failure)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.02, 0.1), (0.05, 0.05), (0.05, 0.2)])
def test_promise_is_broken_in_at_most_delta_of_the_splits(
    noisy: ReplayTable, epsilon: float, delta: float
) -> None:
    found = resample(noisy, epsilon, delta, CHAINS, n=400, repeats=400)
    assert found.violation_ci.low <= delta
    assert found.oracle_share > 0


def test_bound_is_not_vacuous(noisy: ReplayTable) -> None:
    """A calibrator that never exited would keep every promise, too."""
    found = resample(noisy, 0.05, 0.2, CHAINS, n=1000, repeats=200)
    assert found.violations > 0
    assert found.fallbacks == 0


def test_promise_also_holds_for_exits_before_sufficiency(noisy: ReplayTable) -> None:
    policy, certificate = calibrate(noisy, 0.05, 0.1, CHAINS, risk="early")
    assert certificate.exits
    early = Replay(noisy).evaluate([policy]).early[0]
    assert certificate.losses == early.sum()
    found = resample(noisy, 0.05, 0.1, CHAINS, n=400, repeats=300, risk="early")
    assert found.violation_ci.low <= 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_shuffled_signals_end_in_not_exiting(kind: str) -> None:
    table = known_table(800, seed=2, shuffled=True)
    policy, certificate = calibrate(table, 0.01, 0.05, candidate_chains(kind))  # type: ignore[arg-type]
    assert not policy.enabled
    assert not certificate.exits
    assert certificate.reason is not None
    assert (Replay(table).evaluate([policy]).tokens[0] == table.think_tokens).all()


def test_shuffled_signals_never_break_the_promise() -> None:
    table = known_table(800, seed=2, shuffled=True)
    found = resample(table, 0.02, 0.1, CHAINS, n=400, repeats=300, min_oracle_share=0.0)
    assert found.violation_ci.low <= 0.1


def test_split_that_is_too_small_is_refused_with_the_size_it_takes() -> None:
    assert required_size(0.01, 0.05) == 299
    with pytest.raises(ConfigError, match=r"has 298 questions.*needs at least 299"):
        calibrate(known_table(298), 0.01, 0.05, CHAINS)
    calibrate(known_table(299), 0.01, 0.05, CHAINS)


def test_more_chains_need_more_questions() -> None:
    with pytest.raises(ConfigError, match=r"over 3 chain\(s\) needs at least 408"):
        calibrate(known_table(300), 0.01, 0.05, candidate_chains("linear"))


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1])
def test_epsilon_out_of_range_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match=r"calibrate\.epsilon"):
        calibrate(known_table(50), epsilon, 0.05, CHAINS)


def test_chain_whose_safest_policy_fails_ends_in_not_exiting() -> None:
    bold = ExitPolicy(
        signals=("remain",), thresholds=Thresholds(remain=1000), smoothing=Smoothing(kind="none")
    )
    policy, certificate = calibrate(known_table(400), 0.01, 0.05, [[bold]])
    assert not policy.enabled
    assert certificate.reason == "no candidate is certified"


def test_allowed_losses_are_the_largest_that_the_binomial_test_rejects() -> None:
    for n, epsilon, level in [(450, 0.01, 0.05), (450, 0.02, 0.1), (1000, 0.01, 0.05)]:
        k = most_losses(n, epsilon, level)
        assert stats.binomial_cdf(k, n, epsilon) <= level
        assert stats.binomial_cdf(k + 1, n, epsilon) > level
    assert most_losses(100, 0.01, 0.05) == -1


def test_candidates_of_a_chain_go_from_safe_to_bold() -> None:
    for kind in KINDS:
        for chain in candidate_chains(kind):
            limits = [policy.thresholds.remain for policy in chain]
            assert limits == sorted(limits)
            assert limits[0] <= 1e-4  # a trained head says 0.01 tokens where it is sure
            assert limits[-1] > 390
