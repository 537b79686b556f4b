"""Answers between tags, and whatever contract reads them."""

from __future__ import annotations

import pytest

from specexit import Committer, contract
from specexit.contracts import ContractError

from .streams import answer_of, check

TAGS = {"open": "<answer>", "close": "</answer>"}
TEXT = contract({"type": "final_tag", **TAGS})
BOX = contract({"type": "final_tag", **TAGS, "contract": "boxed_integer"})


@pytest.mark.parametrize(
    ("text", "plain", "boxed"),
    [
        (r"<answer>\boxed{42}</answer>", r"\boxed{42}", "42"),
        (r"\boxed{1} <answer>\boxed{42}</answer>", r"\boxed{42}", "42"),
        ("<answer> 0 0 1 </answer>", "0 0 1", None),
        (r"<answer></answer><answer>\boxed 4</answer>", r"\boxed 4", "4"),
        ("in <answer> tags. <answer>5</answer>", "5", None),
        ("<answer>5", "5", None),
        ("<answer>5</ans", "5", None),
        ("<answer>5<4</answer>", "5<4", None),
        ("<answer>5<", "5<", None),
        ("</answer><answer>5</answer>", "5", None),
        (r"<answer>no</answer><answer>\boxed{7}</answer>", "no", "7"),
        ("no tags", None, None),
        ("<answer>", None, None),
    ],
)
def test_final_tag_reads(text, plain, boxed):
    """https://github.com/AI-Hypercomputer/maxtext/pull/4150 (box inside answer tags)"""
    assert answer_of(TEXT, text) == plain
    assert answer_of(BOX, text) == boxed


def test_the_inner_contract_may_commit_before_the_closing_tag():
    text = r"<answer>\boxed{42} because</answer>"
    assert text[: check(BOX, text).position] == r"<answer>\boxed{42}"
    text = "<answer>42</answer> more"
    assert text[: check(TEXT, text).position] == "<answer>42</answer>"


def test_unclosed_tags_count_on_request_only():
    strict = contract({"type": "final_tag", **TAGS, "unclosed": False})
    assert answer_of(strict, "<answer>5") is None
    assert answer_of(strict, "<answer>5</answer>") == "5"


def test_content_is_bounded():
    short = contract({"type": "final_tag", **TAGS, "max_chars": 10})
    text = "<answer>" + "x" * 11 + "</answer> <answer>5</answer>"
    assert answer_of(short, text) == "5"


def test_a_choice_alone_in_its_tag():
    letter = contract({"type": "final_tag", **TAGS, "contract": {"type": "choice"}})
    assert answer_of(letter, "<answer> (b) </answer>") == "B"
    committer = Committer(letter, thinking=False)
    assert committer.feed("<answer>B") is None


def test_specs_go_round_and_errors_name_the_inner_field():
    assert contract(BOX.spec()) == BOX
    with pytest.raises(ContractError, match=r"^contract\.contract\.maximum: "):
        contract({"type": "final_tag", "contract": {"type": "boxed_integer", "maximum": 3}})
    with pytest.raises(ContractError, match=r"^contract\.close: .* overlap"):
        contract({"type": "final_tag", "open": "<a>", "close": "<a>"})


def test_a_tag_that_must_close_commits_at_its_close_only():
    strict = contract({"type": "final_tag", "contract": "choice", "unclosed": False})
    committer = Committer(strict, thinking=False)
    assert committer.feed("<final>Answer: C\n") is None
    assert committer.feed("so</final>").answer == "C"
    assert answer_of(strict, "<final>Answer: C\nand on") is None
    assert answer_of(strict, "<final>Answer: C\n<final>Answer: B</final>") == "B"
