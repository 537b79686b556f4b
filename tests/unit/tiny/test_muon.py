from __future__ import annotations

import pytest
import torch

from specexit.tiny.muon import BatchedMuon, orthogonalise


@pytest.mark.parametrize("shape", [(64, 128), (128, 64), (96, 96)])
def test_singular_values_end_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, *shape)))
    # the quintic iteration swings about 1; a random square matrix keeps a few small values
    assert values.max() < 1.3
    assert values.quantile(0.1) > 0.6


def test_a_step_equals_torch_muon() -> None:
    torch.manual_seed(0)
    start = [torch.randn(64, 128), torch.randn(64, 128), torch.randn(128, 64)]
    ours = [torch.nn.Parameter(m.clone()) for m in start]
    theirs = [torch.nn.Parameter(m.clone()) for m in start]
    optimizers = [
        BatchedMuon(ours, lr=0.01, momentum=0.95, weight_decay=0.1),
        torch.optim.Muon(
            theirs, lr=0.01, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
        ),
    ]
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b, m in zip(ours, theirs, start, strict=True):
        # torch iterates in bfloat16: a few per cent of a step's size
        assert (a - b).norm() < 0.05 * (a - m).norm()


def test_a_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="matrices"):
        BatchedMuon([torch.nn.Parameter(torch.zeros(4))], lr=0.1)
