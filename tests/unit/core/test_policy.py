"""The exit policy's settings and its sequential rule."""

from __future__ import annotations

import pytest

from specexit.config import parse
from specexit.errors import ConfigError
from specexit.policy import ExitPolicy, ExitTracker, Smoothing, Thresholds

PASS, FAIL = (0.9, 0.9, 10.0), (0.1, 0.1, 1e4)
RAW = Smoothing(kind="none")


def run(policy: ExitPolicy, *tokens: tuple[tuple[float, float, float], bool]) -> int | None:
    """Thinking tokens at the exit, None if there is none."""
    tracker = ExitTracker(policy)
    for t, (signals, boundary) in enumerate(tokens, start=1):
        if tracker.update(signals, boundary):
            return t
    return None


def test_exit_falls_at_a_boundary_only() -> None:
    assert run(ExitPolicy(smoothing=RAW), (PASS, False), (PASS, False), (PASS, True)) == 3


def test_all_enabled_signals_must_pass() -> None:
    late = (0.9, 0.9, 500.0)
    assert run(ExitPolicy(smoothing=RAW), (late, True)) is None
    assert run(ExitPolicy(smoothing=RAW, signals=("confidence", "progress")), (late, True)) == 1


def test_thresholds_are_strict() -> None:
    at = (0.8, 0.3, 200.0)
    assert run(ExitPolicy(smoothing=RAW), (at, True)) is None


def test_ewma_starts_at_the_first_value_and_mixes_alpha_of_the_new() -> None:
    tracker = ExitTracker(ExitPolicy(smoothing=Smoothing(alpha=0.25)))
    tracker.update((1.0, 0.0, 8.0), False)
    tracker.update((0.0, 1.0, 0.0), False)
    assert tracker.smoothed == (0.75, 0.25, 6.0)  # 0.25 * new + 0.75 * old


def test_patience_counts_consecutive_boundaries() -> None:
    policy = ExitPolicy(smoothing=RAW, patience=2)
    assert run(policy, (PASS, True), (FAIL, True), (PASS, True), (PASS, False), (PASS, True)) == 5


def test_minimum_tokens_and_boundaries_hold_back() -> None:
    tokens = [(PASS, True)] * 5
    assert run(ExitPolicy(smoothing=RAW, min_think_tokens=3), *tokens) == 3
    assert run(ExitPolicy(smoothing=RAW, min_boundaries=4), *tokens) == 4


def test_max_think_tokens_ends_at_the_next_boundary_and_hard_at_ten_percent_more() -> None:
    policy = ExitPolicy(signals=(), max_think_tokens=10)
    assert run(policy, *[(FAIL, t == 11) for t in range(1, 30)]) == 11
    assert run(policy, *[(FAIL, False)] * 30) == 11
    assert ExitPolicy(max_think_tokens=15).hard_limit == 17  # 16.5, rounded up


def test_mean_smoothing_uses_the_last_window_of_tokens() -> None:
    tracker = ExitTracker(ExitPolicy(smoothing=Smoothing(kind="mean", window=2)))
    for value in (0.0, 0.5, 1.0):
        tracker.update((value, value, value), False)
    assert tracker.smoothed == (0.75, 0.75, 0.75)


def test_paragraph_mean_restarts_after_a_boundary() -> None:
    tracker = ExitTracker(ExitPolicy(smoothing=Smoothing(kind="paragraph_mean")))
    tracker.update((0.0, 0.0, 0.0), True)
    tracker.update((1.0, 1.0, 1.0), False)
    assert tracker.smoothed == (1.0, 1.0, 1.0)


def test_the_reference_preset_is_the_published_one() -> None:
    policy = parse(ExitPolicy, {"preset": "reference"})
    assert (policy.smoothing.unit, policy.smoothing.alpha) == ("step", 0.1)
    assert policy.thresholds == Thresholds(confidence=0.8, progress=0.3, remain=200.0)


def test_a_threshold_out_of_range_names_field_and_value() -> None:
    with pytest.raises(ConfigError, match=r"thresholds\.confidence: 1\.7 is not valid"):
        parse(ExitPolicy, {"thresholds": {"confidence": 1.7}})


def test_an_unknown_key_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"pateince: unknown key; known keys: .*patience"):
        parse(ExitPolicy, {"pateince": 2})
    with pytest.raises(ConfigError, match=r"smoothing\.alhpa: unknown key; known keys: alpha"):
        parse(ExitPolicy, {"smoothing": {"alhpa": 0.1}})


def test_a_policy_that_could_never_exit_is_refused() -> None:
    with pytest.raises(ConfigError, match="signals is empty"):
        parse(ExitPolicy, {"signals": []})


def test_a_policy_survives_its_json() -> None:
    policy = ExitPolicy(patience=3, max_think_tokens=99, signals=("remain",))
    assert ExitPolicy.model_validate(policy.model_dump(mode="json")) == policy
