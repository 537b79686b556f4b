"""Think format: finding the tags, and where a text thinks."""

from __future__ import annotations

import pytest

from specexit.errors import ConfigError
from specexit.think import ThinkFormat, ThinkSpan

ONE = ThinkFormat((1,), (2,))
MANY = ThinkFormat((1, 7), (2, 3, 4))


class Vocabulary:
    """The two methods of a tokenizer that the think format reads."""

    def __init__(self, *tokens: str) -> None:
        self.vocabulary = {token: i for i, token in enumerate(tokens)}

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [self.vocabulary[c] for c in text]


def test_tags_are_found_in_the_vocabulary() -> None:
    assert ThinkFormat.from_tokenizer(Vocabulary("a", "<think>", "</think>")) == ThinkFormat(
        (1,), (2,)
    )


def test_other_known_tags_are_found() -> None:
    found = ThinkFormat.from_tokenizer(Vocabulary("[THINK]", "[/THINK]"))
    assert found == ThinkFormat((0,), (1,))


def test_a_vocabulary_without_tags_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"set think\.start and think\.end"):
        ThinkFormat.from_tokenizer(Vocabulary("a", "b"))


def test_given_tags_may_take_several_tokens() -> None:
    found = ThinkFormat.from_tokenizer(Vocabulary("a", "b", "c"), start="ab", end="cab")
    assert found == ThinkFormat((0, 1), (2, 0, 1))


def test_one_tag_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="both tags or neither"):
        ThinkFormat.from_tokenizer(Vocabulary("a"), end="a")


def test_an_empty_think_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"think\.end"):
        ThinkFormat((1,), ())


@pytest.mark.parametrize(
    ("ids", "thinking"),
    [
        ([], False),
        ([5, 1, 5], True),
        ([5, 1, 5, 2], False),
        ([1, 5, 2, 8, 1], True),  # an old closed block does not close the new one
        ([2], False),
    ],
)
def test_a_text_thinks_after_its_last_unclosed_start(ids: list[int], thinking: bool) -> None:
    assert ONE.is_thinking(ids) is thinking


def test_part_of_a_multi_token_end_does_not_close() -> None:
    assert MANY.is_thinking([1, 7, 5, 2, 3])
    assert not MANY.is_thinking([1, 7, 5, 2, 3, 4])
    assert not MANY.is_thinking([1, 7, 2, 2, 3, 4])  # a restart halfway still closes


def test_locate_when_the_prompt_opens_the_thinking() -> None:
    assert ONE.locate([9, 1, 8], [5, 5, 2, 6]) == ThinkSpan(0, 2)


def test_locate_when_the_model_opens_it() -> None:
    assert ONE.locate([9], [8, 1, 5, 2, 6, 1, 2]) == ThinkSpan(2, 3)


def test_locate_an_unclosed_thinking() -> None:
    assert ONE.locate([9], [1, 5, 5]) == ThinkSpan(1, None)


def test_locate_nothing_when_the_output_never_thinks() -> None:
    assert ONE.locate([9, 1, 4, 2], [5, 2, 5]) is None


def test_locate_multi_token_tags() -> None:
    assert MANY.locate([], [1, 7, 5, 2, 2, 3, 4, 6]) == ThinkSpan(2, 4)
