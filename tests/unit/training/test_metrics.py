"""Figures of merit against plain definitions."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.evaluate import derivation_end
from training.metrics import auc, bootstrap, calibration_curve, r2, ridge_scores

from .synthetic import make_trace


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_chance_of_the_right_order(pairs: list[tuple[int, bool]]) -> None:
    score = np.array([float(s) for s, _ in pairs])
    positive = np.array([p for _, p in pairs])
    if positive.all() or not positive.any():
        assert np.isnan(auc(score, positive))
        return
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0 for a in score[positive] for b in score[~positive]
    ]
    assert auc(score, positive) == pytest.approx(np.mean(wins))


def test_r2_is_one_for_the_labels_and_zero_for_their_mean() -> None:
    y = np.array([1.0, 2.0, 4.0])
    assert r2(y, y) == 1
    assert r2(np.full(3, y.mean()), y) == pytest.approx(0)


def test_the_interval_holds_the_mean_and_narrows_with_n() -> None:
    rng = np.random.default_rng(0)
    few = [rng.normal(size=(4, 1)) for _ in range(10)]
    many = [rng.normal(size=(4, 1)) for _ in range(400)]
    low, high = bootstrap(few, lambda x: float(x.mean()))
    assert low < np.concatenate(few).mean() < high
    narrow = bootstrap(many, lambda x: float(x.mean()))
    assert narrow[1] - narrow[0] < high - low


def test_the_ridge_probe_finds_a_linear_label() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 10))
    y = (x[:, 3] > 0).astype(float)
    scores = ridge_scores(x[:200], y[:200], x[200:])
    assert auc(scores, y[200:] > 0.5) > 0.95


def test_calibration_of_a_perfect_prediction_is_the_diagonal() -> None:
    p = np.linspace(0, 1, 101)
    for row in calibration_curve(p, p):
        assert row["predicted"] == pytest.approx(row["observed"])


def test_derivation_end_comes_from_meta_or_from_the_trial_answers() -> None:
    rng = random.Random(0)
    known = make_trace(0, rng, meta='{"first_pass_end": 2}')
    assert derivation_end(known) == 2
    answers = ["0", "7", "9", "9", "9"]
    unknown = make_trace(0, rng, trial_answers=answers)
    assert derivation_end(unknown) == 2
