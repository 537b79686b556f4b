"""EAGLE3's training-time test: run the draft on its own states for several steps, in parallel.

At draft step k, row p reads the embedding of token p + 1 + k and its own state of step k - 1
(step 0: the combined features of token p), at rotary position p + k, and predicts token p + 2 + k.
It attends to the rows <= p of step 0 of its own sequence, and to its own earlier steps: what the
engine's drafter sees after row p was accepted and k tokens were drafted (EAGLE3, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from specexit.heads.draft import Draft
from specexit.heads.mtp import MtpHead


def shift(x: Tensor, by: int, fill: int | bool = 0) -> Tensor:
    """`x [R, T]` moved left: result[p] = x[p + by], `fill` beyond the end."""
    tail = x.new_full((x.shape[0], min(by, x.shape[1])), fill)
    return torch.cat([x[:, by:], tail], 1)


def step_mask(is_target: Tensor, document: Tensor, k: int) -> Tensor:
    """`[R, T] bool`: rows whose prediction at draft step k, token p + 2 + k, is a target of their
    own sequence. Inputs, targets and mask shift together."""
    same = (shift(document, k + 2, -1) == document) & (document >= 0)
    return same & shift(is_target, k + 2, False)


def same_sequence(document: Tensor) -> Tensor:
    """`[R, 1, T, T] bool`: causal within each packed sequence. Padding sees itself."""
    T = document.shape[1]
    causal = torch.ones(T, T, dtype=torch.bool, device=document.device).tril()
    return (causal & (document[:, :, None] == document[:, None, :]))[:, None]


def unroll(
    head: Draft,
    hidden: Tensor,
    ids: Tensor,
    positions: Tensor,
    document: Tensor,
    steps: int,
) -> Iterator[Tensor]:
    """Yield `out [R, T, H]` of each draft step, the input of `head.logits`.

    Args:
        hidden: `[R, T, H]`, `head.fc(head.inputs(...))`.
        ids, positions, document: `[R, T]` of the packed rows.
    """
    if isinstance(head, MtpHead):
        yield from _unroll_mtp(head, hidden, ids, positions, document, steps)
        return
    allowed = same_sequence(document)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for k in range(steps):
        q, key, value, residual = head.project(head.embed(shift(ids, k + 1)), hidden, positions + k)
        keys.append(key)
        values.append(value)
        attended = chain_attention(q, keys, values, allowed)
        out, hidden = head.finish(attended.to(residual.dtype), residual)
        yield out


def _unroll_mtp(
    head: MtpHead, x: Tensor, ids: Tensor, positions: Tensor, document: Tensor, steps: int
) -> Iterator[Tensor]:
    """`unroll` of an MTP head: the keys of all steps lie in one cache, and the mask lets a row see
    the rows of step 0 as above, and of later steps its own alone."""
    from transformers import DynamicCache

    cache = DynamicCache()
    R, T = ids.shape
    allowed = same_sequence(document)
    own = torch.eye(T, dtype=torch.bool, device=ids.device).expand(R, 1, T, T)
    for k in range(steps):
        out = head.run(x, positions + k, allowed, cache)
        yield out
        if k + 1 < steps:
            x = head.fc(head.inputs(out, shift(ids, k + 2), positions + k + 1))
            allowed = torch.cat([allowed, own], -1)


def chain_attention(q: Tensor, keys: list[Tensor], values: list[Tensor], allowed: Tensor) -> Tensor:
    """Attention of each row over the step-0 rows that it may see and its own later steps.

    Args:
        q: `[R, heads, T, d]` of the newest step.
        keys, values: of steps 0..k, each `[R, kv_heads, T, d]`.
        allowed: `[R, 1, T, T] bool` over the rows of step 0.

    Returns:
        `[R, heads, T, d]`.
    """
    R, heads, T, d = q.shape
    kv_heads = keys[0].shape[1]
    if len(keys) == 1:  # no later steps to merge: the fused kernel will do
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, keys[0], values[0], attn_mask=allowed, enable_gqa=heads != kv_heads)
    grouped = q.view(R, kv_heads, heads // kv_heads, T, d) * d**-0.5
    first = grouped @ keys[0].unsqueeze(2).transpose(-1, -2)
    scores = [first.float().masked_fill(~allowed[:, :, None], float("-inf"))]
    scores += [(grouped * key.unsqueeze(2)).sum(-1, keepdim=True).float() for key in keys[1:]]
    weights = torch.cat(scores, -1).softmax(-1).to(values[0].dtype)
    attended = weights[..., :T] @ values[0].unsqueeze(2)
    for j, value in enumerate(values[1:]):
        attended = attended + weights[..., T + j : T + j + 1] * value.unsqueeze(2)
    return attended.reshape(R, heads, T, d)
