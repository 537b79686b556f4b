"""The token-by-token watch that every engine adapter shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.answer_watch import AnswerWatch, TextWatch, set_think_format, watch_answer
from specexit.contracts import contract
from specexit.think import ThinkFormat

BOX = contract("boxed_integer")
START, END = 1, 2
SINGLE = ThinkFormat((START,), (END,))
MULTI = ThinkFormat((60, 7, 62), (60, 60, 8))  # both begin alike; the end begins twice alike


class CharTokenizer:
    """One token per character, tags spelled out: a vocabulary without think tags."""

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(32, 127)}

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def run(watch: AnswerWatch | TextWatch, tokens: list[tuple[int, str]]) -> str | None:
    """The text up to the cut, None without one."""
    text = ""
    for token_id, piece in tokens:
        cut = watch.feed(token_id, piece)
        if cut is not None:
            return text + piece[: cut.keep] if cut.keep >= 0 else text[: cut.keep]
        text += piece
    return None


def plain(text: str) -> list[tuple[int, str]]:
    return [(100, c) for c in text]


def test_nothing_commits_inside_the_thinking() -> None:
    tokens = [(START, ""), *plain(r"\boxed{1} "), (END, ""), *plain(r"so \boxed{2}.")]
    assert run(AnswerWatch(BOX, SINGLE, False), tokens) == r"\boxed{1} so \boxed{2}"


def test_a_thinking_that_the_prompt_opened_counts() -> None:
    tokens = [*plain(r"\boxed{1}"), (END, "</think>"), *plain(r"\boxed{2}")]
    assert run(AnswerWatch(BOX, SINGLE, True), tokens) == r"\boxed{1}</think>\boxed{2}"


def test_an_answer_may_start_in_the_same_step_as_the_think_end() -> None:
    """One step brings `r</think>ans`: vllm-project/vllm#55195."""
    tokens = [(100, "r"), (END, "</think>"), (100, r"\boxed{2}x")]
    assert run(AnswerWatch(BOX, SINGLE, True), tokens) == r"r</think>\boxed{2}"


def test_a_think_end_outside_the_thinking_is_text() -> None:
    """An answer that talks about the tag: vllm-project/vllm#53924."""
    tokens = [(END, "</think>"), *plain("write "), (END, "</think>"), *plain(r" \boxed{5}")]
    assert run(AnswerWatch(BOX, SINGLE, True), tokens) == r"</think>write </think> \boxed{5}"


def test_thinking_that_starts_again_is_thinking() -> None:
    """A model that opens a second block after a close: vllm-project/vllm#43757."""
    tokens = [(END, ""), (START, ""), *plain(r"\boxed{1}"), (END, ""), *plain(r"\boxed{2}")]
    assert run(AnswerWatch(BOX, SINGLE, True), tokens) == r"\boxed{1}\boxed{2}"


def test_a_box_that_spans_a_thinking_is_one_answer_text() -> None:
    tokens = [*plain(r"\boxed{1"), (START, ""), *plain("9}"), (END, ""), *plain("2}")]
    watch = AnswerWatch(BOX, SINGLE, False)
    assert run(watch, tokens) == r"\boxed{19}2}"
    assert watch.commit is not None
    assert watch.commit.answer == "12"


def test_an_end_tag_of_several_tokens_is_found_after_a_false_start() -> None:
    """`</` `</` `think>`: NVIDIA/TensorRT-LLM#18616."""
    tag = [(60, "<"), (60, "<"), (60, "<"), (8, "/t>")]
    tokens = [*plain(r"\boxed{1}"), *tag, *plain(r"\boxed{2}")]
    assert run(AnswerWatch(BOX, MULTI, True), tokens) == r"\boxed{1}<<</t>\boxed{2}"


def test_text_held_for_a_think_start_is_read_once_it_is_none() -> None:
    # `<t` may open a thinking; the third token says it does not, and the answer began before.
    tokens = [(60, r"\boxed{"), (7, "4}"), (100, "?")]
    watch = AnswerWatch(BOX, MULTI, False, "<think>")
    assert run(watch, tokens) == r"\boxed{4}"
    assert watch.holdback == len("<think>")


def test_a_think_start_of_several_tokens_hides_its_text() -> None:
    tokens = [(60, r"\boxed{"), (7, "4}"), (62, ">"), *plain(r"\boxed{1}")]
    assert run(AnswerWatch(BOX, MULTI, False, "<think>"), tokens) is None


@given(st.lists(st.sampled_from([60, 7, 62, 8, 100]), max_size=30), st.booleans())
def test_tags_of_several_tokens_are_found_as_a_plain_search_finds_them(
    ids: list[int], thinking: bool
) -> None:
    watch = AnswerWatch(BOX, MULTI, thinking)
    expected, since = thinking, 0
    for i, token_id in enumerate(ids):
        watch.feed(token_id, "x")
        tag = list(MULTI.end_ids if expected else MULTI.start_ids)
        if i + 1 - since >= len(tag) and ids[i + 1 - len(tag) : i + 1] == tag:
            expected, since = not expected, i + 1
        assert watch.thinking == expected


@pytest.mark.parametrize(
    ("prompt", "output", "kept"),
    [
        ("Q?", r"\boxed{3} ", r"\boxed{3}"),
        ("Q?", r"<think>\boxed{1}</think>\boxed{3} ", r"<think>\boxed{1}</think>\boxed{3}"),
        ("Q?<think>", r"\boxed{1}</think>\boxed{3} ", r"\boxed{1}</think>\boxed{3}"),
        ("<think>a</think>Q?", r"\boxed{3} ", r"\boxed{3}"),
        ("<think>a</think>Q?<think>", r"\boxed{1}", None),
    ],
)
def test_a_vocabulary_without_tags_is_followed_by_text(
    prompt: str, output: str, kept: str | None
) -> None:
    """The last case is an old closed block in the prompt: ggml-org/llama.cpp#22323."""
    watch = watch_answer(BOX, CharTokenizer(), [ord(c) for c in prompt])
    assert isinstance(watch, TextWatch)
    assert run(watch, plain(output)) == kept


def test_unknown_prompts_count_as_thinking() -> None:
    watch = watch_answer(BOX, CharTokenizer(), None, SINGLE)
    assert run(watch, plain(r"\boxed{3} ")) is None


def test_close_accepts_an_answer_that_only_lacked_its_end() -> None:
    last = contract({"type": "boxed_integer", "evaluator": "last"})
    watch = AnswerWatch(last, SINGLE, True)
    tokens = [(END, ""), *plain(r"\boxed{2} or \boxed{3}")]
    assert run(watch, tokens) is None
    commit = watch.close()
    assert commit is not None
    assert commit.answer == "3"


def test_close_inside_the_thinking_accepts_nothing() -> None:
    last = contract({"type": "boxed_integer", "evaluator": "last"})
    watch = AnswerWatch(last, SINGLE, True)
    run(watch, plain(r"\boxed{2}"))
    assert watch.close() is None


def test_configured_tags_win_over_the_vocabulary_s() -> None:
    tokenizer = CharTokenizer()
    set_think_format(tokenizer, ThinkFormat((ord("("),), (ord(")"),)))
    watch = watch_answer(BOX, tokenizer, [ord("(")])
    assert run(watch, [(ord(c), c) for c in r"\boxed{1})\boxed{2}"]) == r"\boxed{1})\boxed{2}"
