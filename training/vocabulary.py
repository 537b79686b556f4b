"""The draft's vocabulary: the most frequent tokens of the training outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.examples import Example


@dataclass(frozen=True)
class DraftVocabulary:
    """Attributes:
    target_ids: `[V_draft] int64`, ascending.
    coverage: share of the training targets that it holds.
    """

    target_ids: Tensor
    coverage: float


def choose_vocabulary(
    examples: Sequence[Example], vocab_size: int, size: int, always: Sequence[int] = ()
) -> DraftVocabulary:
    """The `size` most frequent target tokens; ties go to the smaller id.

    Args:
        always: ids that must be in it (think tags, end of text).
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for one in examples:
        counts += torch.bincount(one.ids[one.is_target], minlength=vocab_size)
    rank = counts.clone()
    rank[list(always)] = torch.iinfo(torch.int64).max
    order = torch.sort(rank, descending=True, stable=True).indices
    ids = order[:size].sort().values
    covered = int(counts[ids].sum()) / max(1, int(counts.sum()))
    return DraftVocabulary(ids, covered)
