"""Labels: one may begin another, so the committer waits."""

from __future__ import annotations

import pytest

from specexit import Committer, contract
from specexit.contracts import ContractError

from .streams import answer_of

SAFETY = contract({"type": "label", "labels": ["safe", "unsafe", "safe for work", "True"]})


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Label: safe for me", "safe"),
        ("Label: safe for work", "safe for work"),
        ("Label: safe", "safe"),
        ("The answer is unsafe.", "unsafe"),
        ("safe", "safe"),
        ("safe\nfoo", "safe"),
        ("Verdict: **Safe for\nwork**.", "safe for work"),
        ("label: safety", None),
        ("label: safe-ish", None),
        ("<label>safe</label>", "safe"),
        ("I think safe", None),
        ("x\n\nunsafe", "unsafe"),
        ("The answer is not safe. Answer: unsafe", "unsafe"),
        ("Answer: true.", "True"),
        ("分类：ｓａｆｅ", "safe"),
        ("Answer: 'safe'", "safe"),
        ("Label: _safe_", "safe"),
        ("Label: safe or unsafe", None),
        ("Label: safe/unsafe", None),
        ("Label: safe, unsafe.", None),
        ("Label: safe, unsafe things aside", "safe"),
        ("【结论】safe。", "safe"),
        ("结论是safe。", "safe"),
    ],
)
def test_label_reads(text, answer):
    assert answer_of(SAFETY, text) == answer


def test_a_label_that_begins_another_waits():
    committer = Committer(SAFETY, thinking=False)
    assert committer.feed("Label: safe fo") is None
    assert committer.feed("lks").answer == "safe"
    committer.reset()
    assert committer.feed("Label: unsafe.").position == len("Label: unsafe")


def test_case_counts_on_request():
    strict = contract({"type": "label", "labels": ["US", "us"], "case_sensitive": True})
    assert answer_of(strict, "Answer: us\n") == "us"
    assert not strict.equal("US", "us")
    assert SAFETY.equal("SAFE", "**safe**")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"contract\.labels: missing; label needs it"),
        ({"labels": []}, r"contract\.labels: not a list of 1 to"),
        ({"labels": ["a", "A"]}, r"contract\.labels\[1\]: 'A' is there twice"),
        ({"labels": ["a", 1]}, r"contract\.labels\[1\]: not a text"),
        ({"labels": ["x" * 199 + str(i) for i in range(30)]}, r"contract\.labels: \d+ characters"),
        ({"labels": ["x"] * 501}, r"contract\.labels: not a list of 1 to 500"),
    ],
)
def test_wrong_options_are_refused_by_field(options, message):
    with pytest.raises(ContractError, match=message):
        contract({"type": "label", **options})


def test_as_many_labels_as_are_allowed_can_be_watched():
    many = contract({"type": "label", "labels": [f"class {i:04d}" for i in range(500)]})
    assert answer_of(many, "Label: class 0123.", rounds=1) == "class 0123"
