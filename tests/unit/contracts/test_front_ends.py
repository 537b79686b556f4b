"""Bytes and token ids instead of text: the same commit, whatever is cut in half."""

from __future__ import annotations

import random

import pytest

from specexit import Committer, contract
from specexit.ace.bench import train_tokenizer
from specexit.committer import ByteCommitter, TokenCommitter

TEXTS = [
    "<think>\n\\boxed{1} 他说\n\n</think>\n\nSo: \\boxed{42}. Done.",
    "<think>good.\n\n</think>good.\n\nBut \\boxed{7}\n\n",
    "<think>a</think>答案 é 😀 \\boxed{９} 😀",
    "no tags, \\boxed{5}",
]
BOX = contract("boxed_integer")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 3)


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_cut_anywhere_give_the_same_commit(text):
    plain = Committer(BOX)
    expected = plain.feed(text) or plain.close()
    data = text.encode()
    rng = random.Random(text)
    for _ in range(30):
        committer, at, commit = ByteCommitter(Committer(BOX)), 0, None
        while at < len(data) and commit is None:
            step = rng.randint(1, 5)
            commit = committer.feed(data[at : at + step])
            at += step
        assert (commit or committer.close()) == expected


def test_invalid_bytes_are_replaced():
    committer = ByteCommitter(Committer(BOX, thinking=False))
    assert committer.feed(b"\xff\\boxed{\xc3") is None
    assert committer.feed(b"} \\boxed{5}").answer == "5"


@pytest.mark.parametrize("text", TEXTS)
def test_token_boundaries_give_the_same_commit(tokenizer, text):
    """https://github.com/openai/tiktoken/issues/159 (a blank line is one id, or two)"""
    plain = Committer(BOX)
    expected = plain.feed(text) or plain.close()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    for size in (1, 3, len(ids)):
        committer, at, commit = TokenCommitter(Committer(BOX), tokenizer), 0, None
        while at < len(ids) and commit is None:
            commit = committer.feed(ids[at : at + size])
            at += size
        assert (commit or committer.close()) == expected
        kept = tokenizer.decode(ids[: committer.tokens_kept], skip_special_tokens=False)
        assert kept.startswith(text[: expected.position])
        assert BOX.project(kept) == expected.answer


def test_a_blank_line_in_one_token_or_two_is_the_same(tokenizer):
    """https://github.com/ggml-org/llama.cpp/issues/6809"""
    whole = tokenizer.encode("good.\n\n", add_special_tokens=False).ids
    halves = [i for c in ("good.", "\n", "\n") for i in tokenizer.encode(c).ids]
    answer = tokenizer.encode("\\boxed{7}", add_special_tokens=False).ids
    for ids in (whole, halves):
        committer = TokenCommitter(Committer(BOX, thinking=False), tokenizer)
        commit = committer.feed([*ids, *answer])
        assert (commit.answer, commit.position) == ("7", len("good.\n\n\\boxed{7}"))


def test_skipped_ids_are_not_read(tokenizer):
    ids = tokenizer.encode("The answer is B", add_special_tokens=False).ids
    end = tokenizer.token_to_id("</think>")
    committer = TokenCommitter(Committer("choice", thinking=False), tokenizer, skip_ids=[end])
    assert committer.feed([*ids, end]) is None
    assert committer.close().answer == "B"
    assert committer.tokens_kept == len(ids) + 1


@pytest.mark.parametrize(
    ("spec", "text", "rest"),
    [
        ("boxed_integer", "\\boxed{1", "2}"),
        ("choice", "The answer is", " B\n"),
        ("json", '{"a": [1', "]}"),
        ("patch", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a", "\n+b\nx"),
        ({"type": "report", "fields": ["Status"]}, "Status: do", "ne\n"),
        ({"type": "final_tag", "contract": "boxed_integer"}, "<final>\\box", "ed{3}"),
        ({"type": "all_of", "contracts": ["boxed_integer", "choice"]}, "\\boxed{1} A", "nswer: B."),
        ({"type": "boxed_integer", "evaluator": "last"}, "\\boxed{1} \\box", "ed{4} "),
        ("final_answer", "The answer is 1", "2."),
    ],
)
def test_forks_go_their_own_ways(spec, text, rest):
    one = Committer(spec, thinking=False)
    assert one.feed(text) is None
    other, later = one.fork(), one.fork()
    other.feed("9]} X\n\n```\n<final>q")
    first = one.feed(rest) or one.close()
    assert first is not None
    assert (later.feed(rest) or later.close()) == first
    whole = Committer(spec, thinking=False)
    assert (whole.feed(text + rest) or whole.close()) == first


def test_states_are_told_apart():
    committer = Committer("boxed_integer", thinking=False)
    assert (committer.is_completed, committer.is_terminated) == (False, False)
    committer.feed("\\boxed 5")
    assert (committer.is_completed, committer.is_terminated) == (True, False)
    assert committer.feed(" ") is not None
    assert (committer.is_completed, committer.is_terminated) == (True, True)
    assert committer.feed("\\boxed{6}") is None
    assert committer.commit.answer == "5"
    committer.reset()
    assert committer.commit is None
    assert committer.close() is None
    assert committer.is_terminated
    assert committer.feed("\\boxed{6}") is None
