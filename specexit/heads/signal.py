"""The signal head: extra output rows of the draft's input projection, and a small readout.

`z_t = P f_t + b` from the features `f_t` that the draft's own projection reads; then
confidence = sigmoid(s0), progress = sigmoid(s1), remain = exp(s2) tokens. Everything is fp32.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["linear", "mlp", "memory"]
KINDS: tuple[Kind, ...] = ("linear", "mlp", "memory")


class SignalState(NamedTuple):
    """What a head carries from token to token, for B requests. Stateless kinds leave it untouched.

    Attributes:
        hidden: `[B, D]` GRU state after the last boundary.
        total: `[B, D]` sum of z over the current paragraph.
        tokens: `[B] float32`, tokens of the current paragraph.
        logits: `[B, 3]` readout of `hidden`.
    """

    hidden: Tensor
    total: Tensor
    tokens: Tensor
    logits: Tensor


class SignalHead(nn.Module):
    """Three signals from the draft's input features.

    Kinds: `linear` is the paper's (three rows); `mlp` reads D rows pointwise; `memory` keeps a
    running mean of z over the paragraph and updates a GRU of size D at each boundary, from z there
    and that mean. Between boundaries its signals are those of the last boundary.

    Args:
        kind: one of `KINDS`.
        in_features: width of f, 3H for EAGLE3 with three auxiliary layers.
        rows: D, the number of projection rows (3 for `linear`).
        readout_size: hidden width of the small MLP.
    """

    def __init__(
        self, kind: Kind, in_features: int, *, rows: int = 32, readout_size: int = 64
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"signal_head.kind: {kind!r} is not one of {', '.join(KINDS)}")
        self.kind = kind
        self.rows = 3 if kind == "linear" else rows
        self.projection = nn.Linear(in_features, self.rows)
        if kind != "linear":
            self.readout = nn.Sequential(
                nn.Linear(self.rows, readout_size), nn.SiLU(), nn.Linear(readout_size, 3)
            )
        if kind == "memory":
            self.gru = nn.GRUCell(2 * self.rows, self.rows)

    @property
    def is_stateful(self) -> bool:
        """Whether `step` needs the state of the token before."""
        return self.kind == "memory"

    def project(self, features: Tensor) -> Tensor:
        """`features [..., F]` of any dtype -> `z [..., D] float32`."""
        return self.projection(features.float())

    def init_state(self, batch: int) -> SignalState:
        """State of B requests before their first thinking token."""
        like = self.projection.weight
        zeros = like.new_zeros(batch, self.rows)
        logits = like.new_zeros(batch, 3)
        if self.kind == "memory":
            logits = self.readout(zeros)
        return SignalState(zeros, zeros, like.new_zeros(batch), logits)

    def step(
        self, state: SignalState, z: Tensor, is_boundary: Tensor
    ) -> tuple[SignalState, Tensor]:
        """Advance by one thinking token.

        Args:
            state: of B requests.
            z: `[B, D] float32` of the token.
            is_boundary: `[B] bool`.

        Returns:
            The new state and the token's `logits [B, 3]`.
        """
        if self.kind == "linear":
            return state, z
        if self.kind == "mlp":
            return state, self.readout(z)
        total = state.total + z
        tokens = state.tokens + 1
        at = is_boundary[:, None]
        hidden = self.gru(torch.cat([z, total / tokens[:, None]], -1), state.hidden)
        hidden = torch.where(at, hidden, state.hidden)
        logits = torch.where(at, self.readout(hidden), state.logits)
        total = torch.where(at, torch.zeros_like(total), total)
        tokens = torch.where(is_boundary, torch.zeros_like(tokens), tokens)
        return SignalState(hidden, total, tokens, logits), logits

    def forward(self, z: Tensor, is_boundary: Tensor) -> Tensor:
        """All tokens of whole thinkings at once: the same numbers as `step`, token by token.

        Args:
            z: `[B, T, D] float32`, one thinking a row, right-padded.
            is_boundary: `[B, T] bool`, False on padding.

        Returns:
            `logits [B, T, 3]`; those of padding mean nothing.
        """
        if self.kind == "linear":
            return z
        if self.kind == "mlp":
            return self.readout(z)
        at_boundary = self.boundary_logits(z, is_boundary)
        last = is_boundary.cumsum(1)  # boundaries up to and including t: 0 is the initial state
        return at_boundary.gather(1, last[:, :, None].expand(-1, -1, 3))

    def boundary_logits(self, z: Tensor, is_boundary: Tensor) -> Tensor:
        """`memory` only: `[B, K + 1, 3]`, the readout before the first and after each boundary."""
        B, T, D = z.shape
        before = is_boundary.cumsum(1) - is_boundary.long()  # paragraph index of each token
        K = int(is_boundary.sum(1).max()) if T else 0
        totals = z.new_zeros(B, K + 1, D).scatter_add_(1, before[:, :, None].expand(-1, -1, D), z)
        counts = z.new_zeros(B, K + 1).scatter_add_(1, before, torch.ones_like(z[:, :, 0]))
        position = before.new_zeros(B, K + 1)
        steps = torch.arange(T, device=z.device).expand(B, T)
        position.scatter_add_(1, before, torch.where(is_boundary, steps, 0))
        z_at = z.gather(1, position[:, :, None].expand(-1, -1, D))
        means = totals / counts.clamp_min(1)[:, :, None]
        return self.paragraph_logits(z_at[:, :K], means[:, :K])

    def paragraph_logits(self, z_at: Tensor, means: Tensor) -> Tensor:
        """`memory` only, from what the GRU reads of each of K paragraphs.

        Args:
            z_at: `[B, K, D]`, z at each boundary.
            means: `[B, K, D]`, mean z of the paragraph that ends there.

        Returns:
            `[B, K + 1, 3]`, the readout before the first and after each boundary.
        """
        inputs = F.linear(torch.cat([z_at, means], -1), self.gru.weight_ih, self.gru.bias_ih)
        hidden = z_at.new_zeros(z_at.shape[0], z_at.shape[2])
        states = [hidden]
        for k in range(z_at.shape[1]):
            hidden = _gru_step(self.gru, inputs[:, k], hidden)
            states.append(hidden)
        return self.readout(torch.stack(states, 1))


def _gru_step(cell: nn.GRUCell, gates_in: Tensor, hidden: Tensor) -> Tensor:
    """One GRU update from the already projected input, as `nn.GRUCell` defines it."""
    gates_hidden = F.linear(hidden, cell.weight_hh, cell.bias_hh)
    r_in, u_in, n_in = gates_in.chunk(3, -1)
    r_h, u_h, n_h = gates_hidden.chunk(3, -1)
    reset = torch.sigmoid(r_in + r_h)
    update = torch.sigmoid(u_in + u_h)
    new = torch.tanh(n_in + reset * n_h)
    return new + update * (hidden - new)


def activate(logits: Tensor) -> Tensor:
    """`logits [..., 3]` -> signals: confidence and progress in (0, 1), remain in tokens."""
    return torch.cat([torch.sigmoid(logits[..., :2]), torch.exp(logits[..., 2:])], -1)
