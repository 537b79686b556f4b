"""Step split: the tokens that end a paragraph, from the whole vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specexit.split import StepSplitter, text_boundaries

# id:      0    1     2       3       4         5     6      7      8       9       10
TEXTS = ["a", "\n", "\n\n", ".\n\n", "\n\n\n", ".\n", " So", "But", "\n\nBut", ")\n\n", "\r\n"]
PARAGRAPH = StepSplitter.from_texts(TEXTS)
DISCOURSE = StepSplitter.from_texts(TEXTS, mode="discourse")


def test_every_token_with_a_blank_line_is_found() -> None:
    assert PARAGRAPH.contains_blank_line.nonzero().flatten().tolist() == [2, 3, 4, 8, 9]


def test_boundary_zero_lies_right_after_the_think_start() -> None:
    assert PARAGRAPH.boundaries([]) == [0]
    assert PARAGRAPH.boundaries([0, 0]) == [0]


def test_a_boundary_lies_right_after_its_token() -> None:
    assert PARAGRAPH.boundaries([0, 3, 0, 0, 2]) == [0, 2, 5]


@pytest.mark.parametrize("pair", [(1, 1), (5, 1), (10, 10), (1, 10)])
def test_a_blank_line_of_two_tokens_ends_at_the_second(pair: tuple[int, int]) -> None:
    assert PARAGRAPH.boundaries([0, *pair, 0]) == [0, 3]


def test_two_newlines_with_text_between_are_no_blank_line() -> None:
    assert PARAGRAPH.boundaries([1, 0, 1]) == [0]


def test_the_token_before_the_thinking_counts_for_the_pair_rule() -> None:
    assert PARAGRAPH.boundaries([1, 0], previous=5) == [0, 1]
    assert PARAGRAPH.boundaries([1, 0], previous=0) == [0]
    assert PARAGRAPH.boundaries([1, 0]) == [0]


def test_discourse_mode_also_splits_before_connectives() -> None:
    assert DISCOURSE.boundaries([0, 6, 0, 7]) == [0, 1, 3]
    assert PARAGRAPH.boundaries([0, 6, 0, 7]) == [0]
    assert DISCOURSE.boundaries([0], following=7) == [0, 1]


def test_ids_beyond_the_tokenizer_are_never_boundaries() -> None:
    padded = StepSplitter.from_texts(TEXTS, vocab_size=16)
    assert padded.vocab_size == 16
    assert padded.boundaries([15, 14]) == [0]


@given(st.lists(st.integers(0, len(TEXTS) - 1), max_size=40))
def test_boundaries_are_where_the_text_so_far_ends_a_paragraph(ids: list[int]) -> None:
    # the right value: DESIGN's definition, on the text itself
    expected = [0]
    for i, token in enumerate(ids):
        text = TEXTS[token]
        before = TEXTS[ids[i - 1]] if i else ""
        starts = text.startswith(("\n", "\r\n"))
        if "\n\n" in text or (starts and before.endswith("\n")):
            expected.append(i + 1)
    assert PARAGRAPH.boundaries(ids) == expected


@given(st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=40), st.data())
def test_the_mask_of_a_window_equals_that_of_the_whole(ids: list[int], data: Any) -> None:
    start = data.draw(st.integers(0, len(ids) - 1))
    whole = DISCOURSE.boundaries(ids, previous=0, following=0)
    window = torch.tensor(ids[start:])
    before = torch.tensor([0, *ids][start : start + len(window)])
    after = torch.tensor([*ids, 0][start + 1 : start + 1 + len(window)])
    hits = (DISCOURSE.mask(window, before, after).nonzero().flatten() + start + 1).tolist()
    assert hits == [b for b in whole if b > start]


def test_the_built_in_tokenizer_has_its_blank_line_tokens(tiny_tokenizer: Any) -> None:
    splitter = StepSplitter.from_tokenizer(tiny_tokenizer)
    ids = tiny_tokenizer("One.\n\nTwo:\n\nThree")["input_ids"]
    assert len(splitter.boundaries(ids)) == 3  # boundary 0 and two blank lines


def test_text_boundaries_lie_after_each_run_of_blank_lines() -> None:
    assert text_boundaries("a\n\nb\n\n\nc\nd\r\n\r\ne") == [0, 3, 7, 14]
