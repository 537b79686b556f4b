"""Nothing commits inside the thinking, however the tags arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specexit import Committer, contract
from specexit.contracts import ContractError

from .streams import check

BOX = contract("boxed_integer")


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        (r"<think>\boxed{1}</think>\boxed{2}", "auto", "2"),
        (r"\boxed{1}</think>\boxed{2}", "auto", "2"),
        (r"\boxed{1}</think>\boxed{2}", True, "2"),
        (r"<think>\boxed{1}", "auto", None),
        (r"\boxed{1}", True, None),
        (r"\boxed{1}", "auto", "1"),
        (r"\boxed{1}", False, "1"),
        (r"<think>\boxed{1}</think>", "auto", None),
        (r"<think>a</think> hm <think>\boxed{1}</think>\boxed{2}", "auto", "2"),
        (r"<think>a</think> hm <think>\boxed{1}", "auto", None),
        (r"Sure. <think>\boxed{1}</think>\boxed{2}", "auto", "2"),
        (r"\boxed{3}<think>\boxed{1}</think>\boxed{2}", "auto", "3"),
        (r"<think>\boxed{1}</thin</think>\boxed{2}", "auto", "2"),
        (r"<think>a</think>\boxed{4</think>\boxed{2}", "auto", "2"),
        (r"<think>a<think>\boxed{1}</think>\boxed{2}", "auto", "2"),
        (r"a</think>\boxed{<think>9</think>2}", True, "2"),
        (r"a</think><\boxed{2}<", True, "2"),
        (r"a</think>\boxed 2<th", True, "2"),
    ],
)
def test_only_text_outside_thinking_commits(text, thinking, answer):
    commit = check(BOX, text, thinking=thinking)
    assert (commit and commit.answer) == answer


def test_text_without_tags_commits_at_the_end_only_in_auto():
    committer = Committer(BOX, thinking="auto")
    assert committer.feed(r"\boxed{1} and more") is None
    assert committer.is_completed
    assert not committer.is_terminated
    assert committer.close().answer == "1"
    assert committer.is_terminated


def test_position_counts_the_thinking():
    text = r"<think>x</think> so \boxed{5}. Done."
    assert text[: check(BOX, text, thinking="auto").position].endswith(r"\boxed{5}")


def test_other_tags():
    committer = Committer(BOX, thinking="auto", think_start="[THINK]", think_end="[/THINK]")
    commit = [committer.feed(c) for c in r"[THINK]\boxed{1}[/THINK]\boxed{2} "]
    assert [c.answer for c in commit if c] == ["2"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"thinking": "yes"}, "thinking"),
        ({"think_start": ""}, "think_start"),
        ({"think_end": "x" * 1000}, "think_end"),
        ({"think_start": "<t>", "think_end": "<t>"}, "think_end"),
    ],
)
def test_wrong_tags_are_refused_by_name(options, field):
    with pytest.raises(ContractError, match=f"^{field}: "):
        Committer(BOX, **options)


FRAGMENTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<thi",
        "nk>",
        "</",
        "<",
        r"\boxed{1}",
        r"\boxed{2",
        "}",
        "{",
        "\n",
        "a",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(FRAGMENTS, max_size=14).map("".join), st.sampled_from([True, "auto"]), st.text("<th}2")
)
def test_a_commit_survives_every_continuation(text, thinking, more):
    check(BOX, text, thinking=thinking, rounds=2)
    committer = Committer(BOX, thinking=thinking)
    commit = committer.feed(text)
    if commit is not None:
        for tail in (more, "</think>", "<think>", r"</think>\boxed{3}"):
            assert BOX.project(text + tail, thinking=thinking) == commit.answer
