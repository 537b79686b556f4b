"""The draft layer's keys and values of one request, for step-by-step drafting."""

from __future__ import annotations

import torch
from torch import Tensor


class DraftCache:
    """Keys and values of the rows so far. Row p holds the pair (features of p, token p + 1).

    Attributes:
        keys, values: `[1, kv_heads, n, d]`, or None while empty.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add rows `[1, kv_heads, n, d]`; returns all rows."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys, keys], 2)
            values = torch.cat([self.values, values], 2)
        self.keys, self.values = keys, values
        return keys, values

    def truncate(self, rows: int) -> None:
        """Forget all rows from `rows` on, as after drafting or a rejection."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, :rows], self.values[:, :, :rows]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the last n of m rows.

    Args:
        q: `[1, heads, n, d]`, rows m - n .. m - 1.
        k, v: `[1, kv_heads, m, d]`.

    Returns:
        `[1, heads, n, d]`.
    """
    n, m = q.shape[2], k.shape[2]
    allowed = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=allowed, enable_gqa=q.shape[1] != k.shape[1]
    )
