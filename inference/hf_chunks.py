"""Contracts for any `generate`: ask for K tokens at a time and look in between.

The fallback where no stopping criterion can be given (compiled or remote generate). It costs one
prefill a chunk and up to K - 1 surplus tokens, which are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from inference.hf_stop import AnswerFollower
from specexit.contracts import Contract, contract

CHUNK = 64

Generate = Callable[[Tensor, Tensor, int], Tensor]
"""`(input_ids [B, T], attention_mask [B, T], max_new_tokens) -> [B, T + n]`, prompts included."""


def generate_in_chunks(
    generate: Generate,
    prompts: Sequence[Sequence[int]],
    contract_: Contract | str | dict[str, Any],
    tokenizer: Any,
    *,
    chunk: int = CHUNK,
    max_new_tokens: int = 1024,
    eos_token_ids: Sequence[int] | None = None,
) -> list[AnswerFollower]:
    """Generate for all prompts until each answer satisfies the contract.

    Args:
        generate: for a `transformers` model,
            `lambda ids, mask, n: model.generate(input_ids=ids, attention_mask=mask,
            max_new_tokens=n)`.
        prompts: token ids; rows are padded on the left.
        chunk: K, tokens asked for at a time.
        max_new_tokens: limit of each output.
        eos_token_ids: ids that end an output; by default the tokenizer's.

    Returns:
        One follower a prompt, with `text`, `tokens` and `commit`.
    """
    if chunk < 1:
        raise ValueError(f"chunk: {chunk} is not a number of tokens >= 1")
    wanted = contract(contract_)
    eos = set(eos_token_ids or [tokenizer.eos_token_id])
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    texts = [list(prompt) for prompt in prompts]
    followers = [AnswerFollower(wanted, tokenizer, prompt) for prompt in texts]
    live = list(range(len(texts)))
    left = max_new_tokens
    while live and left > 0:
        n = min(chunk, left)
        ids, mask = _pad_left([texts[i] for i in live], pad)
        new = generate(ids, mask, n)[:, ids.shape[1] :].tolist()
        left -= n
        live = [
            i for i, row in zip(live, new, strict=True) if _read(followers[i], texts[i], row, eos)
        ]
    return followers


def _read(follower: AnswerFollower, text: list[int], new: list[int], eos: set[int]) -> bool:
    """Take a row's new tokens; True if the row goes on."""
    for token_id in new:
        if token_id in eos:
            follower.close()
            return False
        text.append(token_id)
        follower.feed(token_id)
        if follower.commit is not None:
            return False
    return bool(new)


def _pad_left(rows: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Right-aligned `ids [B, T]` and their mask."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask
