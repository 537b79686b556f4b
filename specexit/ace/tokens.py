"""Count the tokens of existing texts.

With a tokenizer, its tokens. Without one, the pieces of a pattern as byte-level BPE tokenizers use
it before merging (a word with the blank before it, a run of digits or marks): roughly tokens, and
the same for every model, which is all that shares and ratios need.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_PIECE = re.compile(r" ?[^\W\d_]+| ?\d{1,3}| ?[^\s\w]+|_|\s+(?!\S)|\s+")


def count_pieces(text: str) -> int:
    """Pieces of the pattern in `text`."""
    return sum(1 for _ in _PIECE.finditer(text))


def token_counter(tokenizer: str | None) -> Callable[[str], int]:
    """A function that counts tokens: with the tokenizer in a folder (or of a name), or pieces."""
    if tokenizer is None:
        return count_pieces
    from transformers import AutoTokenizer

    loaded: Any = AutoTokenizer.from_pretrained(tokenizer)
    return lambda text: len(loaded.encode(text, add_special_tokens=False))
