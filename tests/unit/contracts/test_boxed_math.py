"""Mathematics in boxes, and when two answers are the same."""

from __future__ import annotations

import time

import pytest

from specexit import contract
from specexit.contracts.math_judge import MathJudge

from .streams import answer_of

MATH = contract("boxed_math")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{}\boxed{...}\boxed{\ldots}\boxed{your answer}\boxed{p-q}", "p-q"),
        (r"within \(\boxed{\)}: \(\boxed{78}\)", "78"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x : x > 0 \right\}}", r"\left\{ x : x > 0 \right\}"),
        (r"\boxed{\text{odd}}", "odd"),
        (r"\fbox{$12$}", "12"),
        (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\boxed{\text{a {b}", None),
        (r"\boxed{(1, 2]}", "(1, 2]"),
        (r"\boxed{5\ }", "5"),
        (r"\boxed{\text{yes}\\}", r"\text{yes}\\"),
    ],
)
def test_boxed_math_reads(text, answer):
    """https://github.com/EleutherAI/lm-evaluation-harness/issues/3116 (fbox)"""
    assert answer_of(MATH, text) == answer


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (r"\dfrac{3}{56}", r"\frac{3}{56}", True),
        (r"90^\circ", "90", True),
        ("8,000", "8000", True),
        (r"35\text{ cm}", "35", True),
        ("x", "y", False),
        ("12", "13", False),
        ("12", None, False),
    ],
)
def test_texts_and_numbers_compare_without_algebra(a, b, same):
    """https://github.com/huggingface/Math-Verify/issues/57 (units)"""
    assert MATH.equal(a, b) is same


def test_algebra_is_left_to_math_verify():
    pytest.importorskip("math_verify")
    assert MATH.equal("p-q", "-q+p")
    assert MATH.score(r"\frac12", "0.5")
    assert not MATH.equal("(1,2)", "(2,1)")


def test_a_late_verdict_is_no_verdict_and_the_next_one_works():
    pytest.importorskip("math_verify")
    judge = MathJudge(time_limit_s=1.0)
    try:
        assert judge.same("1", "1.0")
        start = time.perf_counter()
        assert not judge.same("2^{10^{10^{10}}}", "3")
        assert time.perf_counter() - start < 3
        assert judge.same("x+1", "1+x")
    finally:
        judge.stop()
