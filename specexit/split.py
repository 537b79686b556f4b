"""Step split: which tokens end a paragraph. One object for the data builder and the engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

SplitMode = Literal["paragraph", "discourse"]

_BLANK_LINE = re.compile(r"\n\r?\n")
_STARTS_WITH_NEWLINE = re.compile(r"\r?\n")

# English connectives that open a new thought; matched as whole tokens, with or without a space.
CONNECTIVES = frozenset(
    {"But", "So", "Therefore", "Wait", "Alternatively", "Hmm", "However", "Thus", "Hence"}
    | {"Actually", "Now", "Then", "Next"}
)


@dataclass(frozen=True, eq=False)
class StepSplitter:
    """Flags of every token of a vocabulary of size V, from decoding the whole vocabulary once.

    A token is a boundary when it contains a blank line, or when it starts with a newline and the
    token before it ends with one (tokenizers that write a blank line as two tokens). In
    `discourse` mode a token is also a boundary when a connective follows it.

    Attributes:
        contains_blank_line, starts_with_newline, ends_with_newline, is_connective: `[V + 1] bool`;
            the last entry is False, so that id -1 stands for "no token".
        mode: `paragraph` or `discourse`.
    """

    contains_blank_line: Tensor
    starts_with_newline: Tensor
    ends_with_newline: Tensor
    is_connective: Tensor
    mode: SplitMode = "paragraph"

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, *, vocab_size: int | None = None, mode: SplitMode = "paragraph"
    ) -> StepSplitter:
        """Decode all ids of `tokenizer` once.

        Args:
            vocab_size: the model's vocabulary size where it is padded beyond the tokenizer's;
                ids that the tokenizer does not know are never boundaries.
        """
        known = len(tokenizer)
        size = max(vocab_size or 0, known)
        texts = tokenizer.batch_decode(
            [[i] for i in range(known)],
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        return cls.from_texts(texts, vocab_size=size, mode=mode)

    @classmethod
    def from_texts(
        cls, texts: Sequence[str], *, vocab_size: int | None = None, mode: SplitMode = "paragraph"
    ) -> StepSplitter:
        """Flags from the decoded text of each id."""
        size = max(vocab_size or 0, len(texts))
        flags = torch.zeros(4, size + 1, dtype=torch.bool)
        for i, text in enumerate(texts):
            if "\n" in text:
                flags[0, i] = _BLANK_LINE.search(text) is not None
                flags[1, i] = _STARTS_WITH_NEWLINE.match(text) is not None
                flags[2, i] = text.endswith("\n")
            elif text.strip() in CONNECTIVES:
                flags[3, i] = True
        return cls(flags[0], flags[1], flags[2], flags[3], mode)

    @property
    def vocab_size(self) -> int:
        """V, the number of ids that the flags cover."""
        return self.contains_blank_line.shape[0] - 1

    def to(self, device: torch.device | str) -> StepSplitter:
        """The same flags on another device."""
        return StepSplitter(
            self.contains_blank_line.to(device),
            self.starts_with_newline.to(device),
            self.ends_with_newline.to(device),
            self.is_connective.to(device),
            self.mode,
        )

    def mask(self, ids: Tensor, previous: Tensor, following: Tensor | None = None) -> Tensor:
        """Which tokens are boundaries.

        Args:
            ids, previous, following: `[...] int64`, same shape: each token, the one before it and
                the one after it, -1 for none (`following` is read in `discourse` mode only).

        Returns:
            `[...] bool`.
        """
        hit = self.contains_blank_line[ids] | (
            self.starts_with_newline[ids] & self.ends_with_newline[previous]
        )
        if self.mode == "discourse" and following is not None:
            hit = hit | self.is_connective[following]
        return hit

    def boundaries(
        self, thinking_ids: Sequence[int], *, previous: int = -1, following: int = -1
    ) -> list[int]:
        """Boundary positions of a thinking, as counts of thinking tokens.

        Args:
            thinking_ids: the thinking tokens, without think start and think end.
            previous: the id before the first one; -1 for none.
            following: the id after the last one; -1 for none.

        Returns:
            `[0, b_1, b_2, ...]`: boundary 0 lies right after the think start, boundary k right
            after the k-th step-split token, so `thinking_ids[:b_k]` is its prefix.
        """
        if not thinking_ids:
            return [0]
        ids = torch.tensor(thinking_ids, dtype=torch.int64)
        before, after = torch.roll(ids, 1), torch.roll(ids, -1)
        before[0], after[-1] = previous, following
        hit = self.mask(ids, before, after)
        return [0, *(hit.nonzero().flatten() + 1).tolist()]


def text_boundaries(text: str) -> list[int]:
    """Paragraph ends of a text as character offsets, for text without a tokenizer.

    Returns:
        `[0, e_1, ...]`: each `e_k` lies right after a run of newlines that holds a blank line.
    """
    return [0, *(match.end() for match in re.finditer(r"\n(?:\r?\n)+", text))]
