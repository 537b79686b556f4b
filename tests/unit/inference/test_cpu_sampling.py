"""The replacement for vLLM's CPU kernel does what vLLM's function promises."""

from __future__ import annotations

import torch

from inference.vllm.cpu_sampling import expand


def test_each_row_stands_once_for_each_of_its_tokens() -> None:
    x, ends = torch.tensor([0.5, 0.0, 1.0]), torch.tensor([2, 5, 6], dtype=torch.int32)
    got = expand(x, ends, 6, replace_from=0, replace_to=1)
    assert got.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0]  # the greedy row divides by 1


def test_rows_without_drafts_and_integers() -> None:
    x, ends = torch.tensor([7, 9, 3]), torch.tensor([2, 2, 3], dtype=torch.int32)
    assert expand(x, ends, 3).tolist() == [7, 7, 3]
