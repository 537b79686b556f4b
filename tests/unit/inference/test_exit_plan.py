"""Policies as numbers, and what a request may ask for."""

from __future__ import annotations

import numpy as np
import pytest

from inference.vllm.exit_plan import floor32, make_plan, overlay, request_policy
from specexit.errors import ConfigError
from specexit.policy import ExitPolicy, Smoothing, Thresholds


@pytest.mark.parametrize("limit", [0.8, 0.3, 0.1, 1.0, 0.0, 200.0, -200.1, 1 / 3])
def test_rounded_limit_compares_like_the_exact_one(limit: float) -> None:
    x = np.float32(limit)
    for near in (x, np.nextafter(x, np.float32(-1e9)), np.nextafter(x, np.float32(1e9))):
        assert (float(near) > limit) == (near > np.float32(floor32(limit)))


def test_plan_forces_the_think_end_and_then_the_suffix() -> None:
    plan = make_plan(ExitPolicy(exit_suffix="ab"), (7, 8), lambda text: [ord(c) for c in text])
    assert plan.forced == (7, 8, 97, 98)
    assert plan.limits[-1] == 4


def test_no_signals_leaves_only_the_limit() -> None:
    plan = make_plan(ExitPolicy(signals=(), max_think_tokens=10), (7,))
    assert plan.limits[3:5] == (10, 11)
    assert not any(plan.ignored)
    assert plan.levels == (float("inf"),) * 3


def test_request_merges_single_thresholds() -> None:
    base = ExitPolicy(thresholds=Thresholds(confidence=0.9, progress=0.5, remain=50))
    policy = request_policy(base, '{"thresholds": {"remain": 10}, "patience": 2}')
    assert policy.thresholds == Thresholds(confidence=0.9, progress=0.5, remain=10)
    assert policy.patience == 2
    assert request_policy(base, None) is base
    assert request_policy(base, "on") is base
    assert not request_policy(base, "off").enabled


def test_preset_brings_its_own_smoothing() -> None:
    base = ExitPolicy(smoothing=Smoothing(kind="none", alpha=0.7))
    assert overlay(base, {"preset": "reference"}).smoothing == Smoothing(unit="step", alpha=0.1)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ('{"patience": 0}', r"specexit\.patience: 0 .*greater than or equal to 1"),
        ('{"thresholds": {"confidence": 1.7}}', r"specexit\.thresholds\.confidence: 1\.7 "),
        ('{"patienc": 2}', r"specexit\.patienc: unknown key; known keys: .*patience"),
        ("of", r"specexit: 'of' is neither 'off', 'on' nor JSON"),
        ("[1]", r"specexit: \[1\] is not valid; give 'off', 'on' or policy overrides"),
        (3, r"specexit: 3 is not valid"),
        ({"smoothing": {"kind": "mean"}}, r"smoothing\.kind: 'mean' runs in replay only"),
        ({"signals": []}, r"signals is empty and max_think_tokens is not set"),
    ],
)
def test_bad_request_names_key_value_and_what_is_allowed(argument: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        request_policy(ExitPolicy(), argument)
