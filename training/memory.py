"""Features of the whole training set in RAM: the target is frozen, so they never change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from tqdm import tqdm

from specexit.errors import ConfigError
from training.batch import Batch, collate
from training.examples import Example
from training.features import OnlineTarget, TargetStates


class KeptFeatures:
    """Serves states from a reader of single sequences, in memory or on disk.

    Args:
        target: for its embedding, output rows and vocabulary.
        read: example index -> `(features [n, F], final [n, H])` of its n tokens.
    """

    def __init__(self, target: OnlineTarget, read: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        self._target, self._read = target, read
        self.embedding = target.embedding

    def of(self, index: int) -> tuple[Tensor, Tensor]:
        """Features and final states of one example."""
        return self._read(index)

    def states(self, batch: Batch) -> TargetStates:
        """Assemble the states of packed rows; zeros in padding."""
        R, T = batch.ids.shape
        found = [self._read(i) for i in batch.examples]
        H = self._target.embedding.shape[1]
        F = found[0][0].shape[1] if found else H * len(self._target.aux_layer_ids)
        like = found[0][0] if found else self._target.embedding
        features = torch.zeros(R, T, F, dtype=like.dtype, device=batch.ids.device)
        final = torch.zeros(R, T, H, dtype=like.dtype, device=batch.ids.device)
        places = _sequence_places(batch.document)
        for (row, begin, end), (f, last) in zip(places, found, strict=True):
            features[row, begin:end] = f.to(features.device)
            final[row, begin:end] = last.to(final.device)
        return self._target.wrap(features, final, batch)


def _sequence_places(document: Tensor) -> list[tuple[int, int, int]]:
    places = []
    for row, line in enumerate(document.cpu()):
        values, counts = line[line >= 0].unique_consecutive(return_counts=True)
        begin = 0
        for n in counts[: len(values)].tolist():
            places.append((row, begin, begin + n))
            begin += n
    return places


def gibibytes(examples: Sequence[Example], target: OnlineTarget) -> float:
    """Size of the kept features."""
    width = target.embedding.shape[1] * (len(target.aux_layer_ids) + 1)
    size = target.embedding.element_size()
    return sum(map(len, examples)) * width * size / 2**30


def compute_features(
    target: OnlineTarget,
    examples: Sequence[Example],
    *,
    device: torch.device | str,
    tokens: int = 8192,
    progress: bool = True,
) -> list[tuple[Tensor, Tensor]]:
    """Run the target once over every sequence, alone in its row, shortest first.

    The grouping depends on the lengths alone, so a second run gives the same bits.

    Returns:
        For each example `(features [n, F], final [n, H])` on the CPU, in the target's dtype.
    """
    order = sorted(range(len(examples)), key=lambda i: (len(examples[i]), i))
    groups: list[list[int]] = []
    for i in order:
        if groups and (len(groups[-1]) + 1) * len(examples[i]) <= tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    kept: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(examples)
    for group in tqdm(groups, desc="target features", disable=not progress):
        rows = [[i] for i in group]
        batch = collate(examples, rows, boundary_weight=1, boundaries_only=False)
        features, final = target.run_padded(batch.ids.to(device))
        for row, i in enumerate(group):
            n = len(examples[i])
            kept[i] = (features[row, :n].cpu().clone(), final[row, :n].cpu().clone())
    return kept


def keep_in_memory(
    target: OnlineTarget,
    examples: Sequence[Example],
    *,
    limit_gib: float,
    device: torch.device | str,
    progress: bool = True,
) -> KeptFeatures:
    """Compute and keep all features.

    Raises:
        ConfigError: they would need more than `limit_gib`.
    """
    size = gibibytes(examples, target)
    if size > limit_gib:
        raise ConfigError(
            f"features.mode: memory needs {size:.1f} GiB for {len(examples)} traces, above "
            f"features.memory_gib: {limit_gib}; raise it, or use mode online or stored"
        )
    kept = compute_features(target, examples, device=device, progress=progress)
    return KeptFeatures(target, kept.__getitem__)
