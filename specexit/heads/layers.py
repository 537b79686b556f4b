"""Parts of one decoder layer as vLLM computes them, shared by the EAGLE3 and the MTP draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root mean square norm in fp32, cast back to the input's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`x [..., size]` -> the same shape and dtype."""
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.float()).to(x.dtype)


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`, with the names that checkpoints use."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x [..., H]` -> `[..., H]`."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """The projections of grouped-query attention; who attends to whom is the caller's business.

    Args:
        in_features: width of the input, 2H in an EAGLE3 layer.
        head_norm_eps: eps of Qwen3's norms over each head of q and k, None for Llama and Qwen2.
        bias: bias of q, k and v.
        out_bias: bias of the output projection.
    """

    def __init__(
        self,
        in_features: int,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        head_norm_eps: float | None = None,
        bias: bool = False,
        out_bias: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(in_features, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(in_features, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(in_features, kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, hidden_size, bias=out_bias)
        if head_norm_eps is not None:
            self.q_norm: RMSNorm | None = RMSNorm(head_dim, head_norm_eps)
            self.k_norm: RMSNorm | None = RMSNorm(head_dim, head_norm_eps)
        else:
            self.q_norm = self.k_norm = None

    def project(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """`x [B, T, in]` -> `q [B, heads, T, d]`, `k, v [B, kv_heads, T, d]`, q and k rotated.

        Args:
            rotary: cosines and sines `[B, T, d / 2] float32` of `Rope`.
        """
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.heads, self.head_dim)
        k = self.k_proj(x).view(B, T, self.kv_heads, self.head_dim)
        v = self.v_proj(x).view(B, T, self.kv_heads, self.head_dim).transpose(1, 2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q.transpose(1, 2), rotary), rotate(k.transpose(1, 2), rotary), v

    def merge(self, attended: Tensor) -> Tensor:
        """`[B, heads, T, d]` -> `[B, T, H]` through the output projection."""
        B, _, T, _ = attended.shape
        return self.o_proj(attended.transpose(1, 2).reshape(B, T, self.heads * self.head_dim))


class Rope:
    """Rotary angles of a model, rotating halves of each head (the neox style of Llama and Qwen).

    Args:
        head_dim: d.
        parameters: `rope_parameters` of a `transformers` config. Kinds other than `default`
            (llama3, yarn, linear) take their frequencies from `transformers`.
    """

    def __init__(
        self, head_dim: int, parameters: Mapping[str, Any], max_positions: int = 2048
    ) -> None:
        kind = parameters.get("rope_type", "default")
        theta = float(parameters.get("rope_theta", 10000.0))
        self.scale = 1.0
        if kind == "default":
            exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
            self.frequencies = 1.0 / theta**exponent
        else:
            from transformers import LlamaConfig
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            if kind not in ROPE_INIT_FUNCTIONS:
                known = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
                raise ValueError(f"rope_parameters.rope_type: {kind!r} is not one of {known}")
            config = LlamaConfig(
                head_dim=head_dim,
                rope_parameters=dict(parameters),
                max_position_embeddings=max_positions,
            )
            self.frequencies, self.scale = ROPE_INIT_FUNCTIONS[kind](config, None)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """`positions [B, T] int64` -> cosines and sines `[B, T, d / 2] float32`."""
        angles = positions[..., None].float() * self.frequencies.to(positions.device)
        return angles.cos() * self.scale, angles.sin() * self.scale


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate `x [B, heads, T, d]` by angles `[B, T, d / 2]`, in fp32, cast back."""
    cos, sin = rotary[0][:, None], rotary[1][:, None]
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
