"""Think format: the token ids that open and close the thinking, and where a text thinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specexit.errors import ConfigError

# Pairs looked for in a vocabulary when none is configured; the first that exists wins.
KNOWN_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
)


@dataclass(frozen=True)
class ThinkSpan:
    """Where the first thinking of an output lies, as indices into the output's token ids.

    `start` is the index of the first thinking token, `end` that of the first id of the think end
    (so `end - start` thinking tokens), None while the thinking is not closed.
    """

    start: int
    end: int | None


@dataclass(frozen=True)
class ThinkFormat:
    """The id sequences of think start and think end (one token each for Qwen3 and R1)."""

    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.end_ids:
            raise ConfigError("think.end: empty; name the text that closes a thinking")

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, start: str | None = None, end: str | None = None
    ) -> ThinkFormat:
        """Find the think ids of a `transformers` tokenizer.

        Args:
            tokenizer: anything with `encode` and `get_vocab`.
            start, end: the tags as text. Without them the tags must be single entries of the
                vocabulary (`KNOWN_TAGS`); given ones may take several tokens.

        Raises:
            ConfigError: the vocabulary has no think tags, or only one of `start`, `end` is given.
        """
        if (start is None) != (end is None):
            raise ConfigError(
                f"think: start is {start!r} and end is {end!r}; give both tags or neither"
            )
        if start is not None and end is not None:
            return cls(_encode(tokenizer, start), _encode(tokenizer, end))
        vocabulary = tokenizer.get_vocab()
        for known_start, known_end in KNOWN_TAGS:
            if known_end in vocabulary:
                opening = (vocabulary[known_start],) if known_start in vocabulary else ()
                return cls(opening, (vocabulary[known_end],))
        tried = ", ".join(pair[1] for pair in KNOWN_TAGS)
        raise ConfigError(
            f"think: the tokenizer has no think end (looked for {tried}); "
            "set think.start and think.end to the tags that the model writes"
        )

    def is_thinking(self, ids: Sequence[int]) -> bool:
        """Whether a text that consists of `ids` has an unclosed think start."""
        start = last_index(ids, self.start_ids)
        return start >= 0 and first_index(ids, self.end_ids, start) < 0

    def locate(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> ThinkSpan | None:
        """The first thinking of an output; None if it never thinks.

        A prompt that ends inside a thinking makes the output think from its first token.
        """
        if self.is_thinking(prompt_ids):
            start = 0
        else:
            opened = first_index(output_ids, self.start_ids)
            if opened < 0:
                return None
            start = opened + len(self.start_ids)
        end = first_index(output_ids, self.end_ids, start)
        return ThinkSpan(start, None if end < 0 else end)


def first_index(ids: Sequence[int], pattern: Sequence[int], begin: int = 0) -> int:
    """Index of the first occurrence of `pattern` in `ids[begin:]`, -1 if there is none."""
    n = len(pattern)
    if n == 0:
        return -1
    head, tail = pattern[0], list(pattern[1:])
    if not tail:  # nearly every model's tags: searched at C speed
        try:
            return list(ids).index(head, begin)
        except ValueError:
            return -1
    for i in range(begin, len(ids) - n + 1):
        if ids[i] == head and list(ids[i + 1 : i + n]) == tail:
            return i
    return -1


def last_index(ids: Sequence[int], pattern: Sequence[int]) -> int:
    """Index of the last occurrence of `pattern` in `ids`, -1 if there is none."""
    n = len(pattern)
    if n == 0:
        return -1
    head, tail = pattern[0], list(pattern[1:])
    if not tail:
        backwards = list(ids)[::-1]
        return len(ids) - 1 - backwards.index(head) if head in backwards else -1
    for i in range(len(ids) - n, -1, -1):
        if ids[i] == head and list(ids[i + 1 : i + n]) == tail:
            return i
    return -1


def _encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))
