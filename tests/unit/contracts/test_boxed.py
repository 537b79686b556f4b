r"""Boxes: every cut, every dress, and boxes that never close."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specexit import Committer, contract
from specexit.contracts import ContractError

from .streams import answer_of, check

WIDE = contract({"type": "boxed_integer", "max": 99_999})

INTEGERS = [
    (r"\boxed{2}. Wait, no: \boxed{3}", "2"),
    (r"\fbox{12}", "12"),
    (r"\framebox{12}", "12"),
    (r"\boxed{$9{,}500}", "9500"),
    (r"\boxed{\$9{,}500}", "9500"),
    (r"\boxed{8,000}", "8000"),
    (r"\boxed{8\,000}", "8000"),
    (r"\boxed{12,34}", None),
    (r"\boxed{1} ... so \boxed{1}", "1"),
    (r"\boxed{35 cm}", "35"),
    (r"\boxed{35\text{ cm}}", "35"),
    (r"\boxed{35 \text{ cm}^2}", "35"),
    (r"\boxed{35\%}", "35"),
    (r"\boxed{90^\circ}", "90"),
    (r"\boxed{90^{\circ}}", "90"),
    (r"<answer>\boxed{42}</answer>", "42"),
    (r"\boxed{\text{12}}", "12"),
    (r"\boxed{\mathbf{\text{12}}}", "12"),
    (r"\boxed{{12}}", "12"),
    (r"\boxed{\boxed{12}}", "12"),
    (r"\boxed{\(12\)}", "12"),
    (r"\boxed{**12**}", "12"),
    (r"\boxed{ 12 . }", "12"),
    (r"\boxed{073}", "73"),
    (r"\boxed{000}", "0"),
    (r"\boxed{１２}", "12"),
    (r"\boxed{x = 12}", "12"),
    (r"\boxed{12.00}", "12"),
    (r"\boxed{12.5}", None),
    (r"\boxed{-5}", None),
    (r"\boxed{123456}", None),
    (r"\boxed{12x}", None),
    (r"\boxed{2 pi}", None),
    (r"\boxed{12 or 13}", None),
    (r"\boxed{} \boxed{7}", "7"),
    (r"\boxed{a+b} \boxed{7}", "7"),
    (r"\boxed{a\}b} \boxed{7}", "7"),
    (r"\boxed{a\\} \boxed{7}", "7"),
    (r"\boxed 5 is", "5"),
    (r"\boxed 5", "5"),
    (r"\boxed 57", "57"),
    (r"\boxed5$", "5"),
    (r"\boxed {5}", "5"),
    ("\\boxed\n{5}", "5"),
    ("\\boxed\n\n{5}", None),
    (r"\boxedfoo{5}", None),
    (r"\box{5}", None),
    (r"\\boxed{5}", "5"),
    (r"\boxed{5", None),
    (r"\boxed{\text{12} so", None),
    ("\\boxed{\\text{12} so\n\n\\boxed{13}", "13"),
    ("\\boxed{\\text{12} so \\boxed{13}\n \nend", "13"),
    ("\\boxed{ a \\boxed{ b \\boxed{13} c", "13"),
    ("\\boxed{ \\boxed{\\boxed{13}} \\boxed{14} c", "13"),
    ("\\boxed{" + "z" * 2000 + " \\boxed{13}", "13"),
]


@pytest.mark.parametrize(("text", "answer"), INTEGERS)
def test_boxed_integer_reads(text, answer):
    """Links of the public cases among these.

    https://github.com/EvolvingLMMs-Lab/lmms-eval/issues/1511 (retracted box)
    https://github.com/EleutherAI/lm-evaluation-harness/issues/3116 (fbox)
    https://github.com/open-compass/opencompass/issues/2647 (separators)
    https://github.com/huggingface/Math-Verify/issues/57 (equal boxes, units)
    https://github.com/AI-Hypercomputer/maxtext/pull/4150 (box inside answer tags)
    """
    assert answer_of(WIDE, text) == answer


def test_commit_is_at_the_closing_brace():
    text = r"So \boxed{\text{12}} is it."
    commit = check(WIDE, text)
    assert text[: commit.position] == r"So \boxed{\text{12}}"
    assert commit.contract == "boxed_integer"


def test_a_bare_number_waits_for_its_terminator():
    committer = Committer(WIDE, thinking=False)
    assert committer.feed(r"\boxed 1") is None
    assert committer.feed("2") is None
    assert committer.feed(" cm").position == len(r"\boxed 12")


def test_range_bounds_the_answer():
    signed = contract({"type": "boxed_integer", "min": -9, "max": 9})
    assert answer_of(signed, r"\boxed{10} \boxed{-9}") == "-9"
    assert answer_of(signed, r"\boxed{−9}") == "-9"
    assert contract("boxed_integer").valid("999")
    assert not contract("boxed_integer").valid("1000")


def test_last_box_commits_at_the_end_only():
    """https://github.com/EvolvingLMMs-Lab/lmms-eval/issues/1511"""
    last = contract({"type": "boxed_integer", "evaluator": "last"})
    text = r"\boxed{2}. Wait, no: \boxed{3} ok"
    commit = check(last, text)
    assert (commit.answer, commit.position) == ("3", len(text))
    assert not last.heuristic
    quiet = contract({"type": "boxed_integer", "evaluator": "last", "quiet_chars": 5})
    assert quiet.heuristic
    committer = Committer(quiet, thinking=False)
    assert committer.feed(text).answer == "2"


def test_quiet_chars_do_not_depend_on_the_cut():
    quiet = contract({"type": "boxed_integer", "evaluator": "last", "quiet_chars": 13})
    assert check(quiet, r"\boxed{2} or \boxed{3} and no more boxes").answer == "3"


def test_equality_reads_through_the_dress():
    assert WIDE.equal("073", 73)
    assert WIDE.equal("8,000", "8000")
    assert not WIDE.equal("8", None)
    assert not WIDE.equal("x", "x")
    assert WIDE.score("35", "35 cm")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"type": "boxed_integer", "maximum": 9}, r"contract\.maximum: boxed_integer has no"),
        ({"type": "boxed_integer", "max": "9"}, r"contract\.max: '9' is not an integer"),
        ({"type": "boxed_integer", "max": 9, "min": 10}, r"contract\.max: 9 is below min"),
        ({"type": "boxed_integer", "evaluator": "best"}, r"contract\.evaluator: 'best' is not one"),
        ({"type": "boxed_integer", "quiet_chars": 3}, r"contract\.quiet_chars: only evaluator"),
        ({"type": "boxes"}, r"contract\.type: 'boxes' is unknown \(known: "),
        ({"max": 9}, r"contract\.type: missing"),
        ("boxes", r"contract: 'boxes' is unknown"),
        ('{"type": ', r"contract: not valid JSON"),
        ("nowhere.yaml", r"contract: no such file"),
        (3, r"contract: int is not a name or an object"),
    ],
)
def test_wrong_specs_are_refused_by_field(spec, message):
    with pytest.raises(ContractError, match=message):
        contract(spec)


def test_specs_go_round(tmp_path):
    spec = {"type": "boxed_integer", "max": 9, "evaluator": "last"}
    made = contract(spec)
    assert made.spec() == spec
    assert contract(made.spec()) == made
    file = tmp_path / "c.yaml"
    file.write_text("type: boxed_integer\nmax: 9\nevaluator: last\n", encoding="utf-8")
    assert contract(str(file)) == made
    with pytest.raises(ContractError, match="unknown"):
        contract(str(file), files=False)


FRAGMENTS = st.sampled_from(
    ["\\boxed", "\\fbox", "\\", "{", "}", "1", "23", "\n", " ", "\\text{", "\\}", ",", "cm", "$"]
)


@settings(max_examples=250, deadline=None)
@given(st.lists(FRAGMENTS, max_size=16).map("".join), st.lists(FRAGMENTS, max_size=6).map("".join))
def test_commits_are_sound_and_do_not_depend_on_the_cut(text, more):
    check(WIDE, text, rounds=2)
    commit = Committer(WIDE, thinking=False).feed(text)
    if commit is not None:
        assert WIDE.project(text + more, thinking=False) == commit.answer


def test_a_box_inside_one_that_is_not_accepted_counts():
    assert answer_of(contract("boxed_integer"), r"\boxed{x + y = \boxed{3}} and \boxed{4}") == "3"
    assert answer_of(contract("boxed_integer"), r"\boxed{x + y} and \boxed{4}") == "4"


@pytest.mark.parametrize("text", ["1" + " " * 900 + "!", "{" * 480 + "1" + "}" * 480])
def test_dress_without_end_takes_no_time(text):
    start = time.process_time()
    for _ in range(10):
        contract("boxed_integer").normalise(text)
    assert time.process_time() - start < 1
