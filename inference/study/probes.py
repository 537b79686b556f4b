"""Trained probes as baselines: what a classifier on the target's states can tell.

`SufficiencyProbe`: logistic regression on the draft's input features at the boundary, predicting
that the answer is settled (after "Reasoning Models Know When They're Right", arXiv 2504.05419,
which probes the last token of each reasoning chunk; there the label is a correct answer).

`AttentionProbe`: one transformer layer over all thinking tokens with a binary head at every token,
predicting that the answer has arrived; the exit is decided by the votes of the last ten tokens
(after Terminator, arXiv 2603.12529). Theirs starts from the target's last layer and reads its
final states; ours is trained from scratch on the features that SpecExit's head reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from specexit.dataset import Trace

VOTES = 10


@dataclass(frozen=True)
class Example:
    """One thinking.

    Attributes:
        features: `[T, F]`, of every thinking token.
        boundaries: `[K + 1]` thinking tokens before each boundary.
        settled_from: thinking tokens up to the minimal sufficient boundary; None if none is.
    """

    features: Tensor
    boundaries: list[int]
    settled_from: int | None

    @classmethod
    def make(cls, trace: Trace, features: Tensor) -> Example:
        """From a row of the data set."""
        return cls(features, trace.boundaries, trace.t_star)

    @property
    def ends(self) -> Tensor:
        """Index of the token that ends each paragraph, `[K]`."""
        return torch.tensor(self.boundaries[1:], dtype=torch.int64) - 1

    def labels(self) -> Tensor:
        """`[T] float32`, 1 from the token on with which the answer is settled."""
        T = len(self.features)
        if self.settled_from is None:
            return torch.zeros(T)
        return (torch.arange(1, T + 1) >= max(1, self.settled_from)).float()


class SufficiencyProbe:
    """Logistic regression at boundaries, by L-BFGS with weight decay; deterministic."""

    def __init__(self, decay: float = 1e-3) -> None:
        self.decay = decay

    def fit(self, examples: Sequence[Example]) -> SufficiencyProbe:
        """Fit on the boundaries of `examples`."""
        x = torch.cat([e.features[e.ends] for e in examples]).float()
        y = torch.cat([e.labels()[e.ends] for e in examples])
        self.mean, self.scale = x.mean(0), x.std(0) + 1e-5
        z = (x - self.mean) / self.scale
        self.weight = torch.zeros(z.shape[1], requires_grad=True)
        self.bias = torch.zeros((), requires_grad=True)
        optimiser = torch.optim.LBFGS([self.weight, self.bias], max_iter=100, history_size=10)

        def loss() -> Tensor:
            optimiser.zero_grad()
            value = F.binary_cross_entropy_with_logits(z @ self.weight + self.bias, y)
            value = value + self.decay * self.weight.square().sum()
            value.backward()
            return value

        optimiser.step(loss)
        return self

    @torch.no_grad()
    def scores(self, example: Example) -> NDArray[np.float64]:
        """`[K + 1]` probability that the answer is settled; NaN at boundary 0."""
        z = (example.features[example.ends].float() - self.mean) / self.scale
        p = torch.sigmoid(z @ self.weight + self.bias)
        return np.concatenate([[np.nan], p.double().numpy()])


class AttentionProbe(nn.Module):
    """One causal transformer layer over all thinking tokens, a binary head at each.

    Args:
        in_features: F.
        width, heads: of the layer.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, in_features: int, *, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(in_features))
        self.register_buffer("scale", torch.ones(in_features))
        self.reduce = nn.Linear(in_features, width)
        self.layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, 1)

    def forward(self, features: Tensor) -> Tensor:
        """`[B, T, F]` -> logits `[B, T]`."""
        T = features.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        out: Tensor = self.head(self.layer(self.reduce(features), mask, is_causal=True))
        return out[..., 0]

    def fit(
        self,
        examples: Sequence[Example],
        *,
        epochs: int = 4,
        batch_tokens: int = 4000,
        rate: float = 2e-3,
        seed: int = 0,
        quiet: bool = False,
    ) -> AttentionProbe:
        """Train on every token of `examples` with binary cross-entropy, AdamW, linear decay."""
        x = torch.cat([e.features for e in examples[:200]]).float()
        self.mean.copy_(x.mean(0))
        self.scale.copy_(x.std(0) + 1e-5)
        random = torch.Generator().manual_seed(seed)
        batches = _batches(examples, batch_tokens)
        steps = epochs * len(batches)
        optimiser = torch.optim.AdamW(self.parameters(), lr=rate, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=steps)
        with tqdm(total=steps, desc="attention probe", disable=quiet) as bar:
            for _ in range(epochs):
                for i in torch.randperm(len(batches), generator=random).tolist():
                    features, labels, weights = _pad(batches[i])
                    logits = self((features - self.mean) / self.scale)
                    losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
                    loss = (losses * weights).sum() / weights.sum()
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
                    schedule.step()
                    bar.update()
        return self

    @torch.no_grad()
    def scores(self, example: Example) -> NDArray[np.float64]:
        """`[K + 1]` mean probability over the last ten tokens at each boundary; NaN at 0.

        The published vote counts predictions above 1/2; the mean of the probabilities has the
        same crossing and leaves a threshold to calibrate.
        """
        normal = (example.features.float() - self.mean) / self.scale
        p = torch.sigmoid(self(normal[None])[0]).double()
        total = torch.cat([p.new_zeros(1), p.cumsum(0)])
        stop = example.ends + 1
        start = (stop - VOTES).clamp_min(0)
        means = (total[stop] - total[start]) / (stop - start)
        return np.concatenate([[np.nan], means.numpy()])


def _batches(examples: Sequence[Example], tokens: int) -> list[list[Example]]:
    """Examples of like length together, about `tokens` padded tokens a batch."""
    batches: list[list[Example]] = [[]]
    for example in sorted(examples, key=lambda e: len(e.features)):
        if (len(batches[-1]) + 1) * len(example.features) > tokens and batches[-1]:
            batches.append([])
        batches[-1].append(example)
    return batches


def _pad(batch: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
    pad = nn.utils.rnn.pad_sequence
    features = pad([e.features.float() for e in batch], batch_first=True)
    labels = pad([e.labels() for e in batch], batch_first=True)
    weights = pad([torch.ones(len(e.features)) for e in batch], batch_first=True)
    return features, labels, weights
