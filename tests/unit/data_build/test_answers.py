"""Answers of trials and full outputs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_build.answers import deltas, read_answer
from data_build.engine import Completion
from specexit import contract


def completion(tokenizer: Any, text: str, reason: str = "stop") -> Completion:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Completion(ids, [-0.5] * len(ids), reason)


@pytest.fixture(scope="module")
def boxed() -> Any:
    return contract("boxed_integer")


def test_deltas_join_to_the_decoded_text(tokenizer: Any) -> None:
    @given(st.text(max_size=60))
    def holds(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        joined = "".join(deltas(tokenizer, ids))
        assert (
            tokenizer.decode(ids, skip_special_tokens=True)
            .rstrip("�")
            .startswith(joined.rstrip("�"))
        )
        if "�" not in text:
            assert joined == tokenizer.decode(ids, skip_special_tokens=True)

    holds()


def test_tokens_after_the_commit_do_not_count(tokenizer: Any, boxed: Any) -> None:
    short = read_answer(boxed, tokenizer, completion(tokenizer, "So \\boxed{12}"))
    long = read_answer(boxed, tokenizer, completion(tokenizer, "So \\boxed{12} and more text."))
    assert short == long
    assert short.value == "12"
    assert short.mean_logprob == -0.5


def test_an_answer_that_was_cut_off_is_none(tokenizer: Any) -> None:
    bare = contract({"type": "final_answer"})
    text = "The final answer is 12"
    assert read_answer(bare, tokenizer, completion(tokenizer, text)).value is not None
    assert read_answer(bare, tokenizer, completion(tokenizer, text, "length")).value is None


def test_a_second_think_block_is_not_read(tokenizer: Any, boxed: Any) -> None:
    text = "<think>\\boxed{1}</think> \\boxed{2}"
    assert read_answer(boxed, tokenizer, completion(tokenizer, text)).value == "2"
