"""Intervals against published tables, direct sums and simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specexit import statistics as stats


def test_wilson_equals_the_published_example() -> None:
    """Newcombe (Stat. Med. 17, 1998), table I: 81 of 263 and 0 of 20."""
    low, high = stats.wilson(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    low, high = stats.wilson(0, 20)
    assert (low, round(high, 4)) == (0.0, 0.1611)


def test_clopper_pearson_equals_the_published_example() -> None:
    """Newcombe (Stat. Med. 17, 1998), table I: 81 of 263, 15 of 148, 0 of 20 and 1 of 29."""
    published = {
        (81, 263): (0.2527, 0.3676),
        (15, 148): (0.0578, 0.1617),
        (0, 20): (0.0, 0.1684),
        (1, 29): (0.0009, 0.1776),
    }
    for (k, n), expected in published.items():
        low, high = stats.clopper_pearson(k, n)
        assert (round(low, 4), round(high, 4)) == expected


@given(st.integers(1, 400), st.data())
def test_binomial_cdf_equals_the_direct_sum(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    p = data.draw(st.floats(0.0, 1.0))
    direct = math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))
    assert stats.binomial_cdf(k, n, p) == pytest.approx(min(1.0, direct), rel=1e-9, abs=1e-12)


def test_upper_bound_of_zero_events_is_the_closed_form() -> None:
    assert stats.binomial_upper_bound(0, 300, 0.05) == pytest.approx(1 - 0.05 ** (1 / 300))
    assert stats.binomial_upper_bound(7, 7, 0.05) == 1.0


def test_bootstrap_covers_the_mean_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        low, high = stats.bootstrap_mean(random.exponential(1, 80), trial, resamples=400)
        hits += low <= 1.0 <= high
    assert 0.87 <= hits / 200 <= 0.99


def test_pairing_removes_what_questions_share() -> None:
    random = np.random.default_rng(1)
    hard = random.normal(0, 10, 300)
    a, b = hard + 1 + random.normal(0, 0.1, 300), hard + random.normal(0, 0.1, 300)
    low, high = stats.paired_bootstrap(a, b, 0)
    assert 0.9 < low < 1.0 < high < 1.1


def test_paired_bootstrap_refuses_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="pair them"):
        stats.paired_bootstrap([1, 2], [1], 0)


def test_ratio_interval_holds_the_ratio_of_sums() -> None:
    random = np.random.default_rng(2)
    below = random.uniform(1, 100, 500)
    low, high = stats.bootstrap_ratio(0.7 * below + random.normal(0, 5, 500), below, 0)
    assert low < 0.7 < high
    assert high - low < 0.05


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30).filter(
        lambda rows: len({label for _, label in rows}) == 2
    )
)
def test_auc_equals_counting_all_pairs(rows: list[tuple[int, bool]]) -> None:
    positive = [s for s, label in rows if label]
    negative = [s for s, label in rows if not label]
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    scores, labels = zip(*rows, strict=True)
    assert stats.auc(scores, labels) == pytest.approx(wins / len(positive) / len(negative))


def test_auc_without_a_class_is_nan() -> None:
    assert math.isnan(stats.auc([0.1, 0.2], [True, True]))


def test_grouped_auc_interval_is_wider_where_groups_repeat_one_score() -> None:
    random = np.random.default_rng(3)
    labels = random.integers(0, 2, 60).astype(bool)
    scores = labels + random.normal(0, 1.5, 60)
    repeated, groups = np.repeat(scores, 8), np.repeat(np.arange(60), 8)
    alone = stats.auc_interval(repeated, np.repeat(labels, 8), 0)
    grouped = stats.auc_interval(repeated, np.repeat(labels, 8), 0, groups=groups)
    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)
    assert grouped.low < stats.auc(scores, labels) < grouped.high


def test_same_seed_same_interval() -> None:
    values = np.random.default_rng(4).normal(size=50)
    assert stats.bootstrap_mean(values, 7) == stats.bootstrap_mean(values, 7)
    assert stats.bootstrap_mean(values, 7) != stats.bootstrap_mean(values, 8)
