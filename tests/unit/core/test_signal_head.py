"""The signal head: whole sequences and single steps give the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from specexit.heads.signal import KINDS, Kind, SignalHead, activate

F, D = 12, 5


def head_of(kind: Kind) -> SignalHead:
    torch.manual_seed(3)
    return SignalHead(kind, F, rows=D, readout_size=7).eval().requires_grad_(False)


@given(st.integers(0, 10_000), st.integers(1, 40), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step_equals_the_whole_sequence(
    kind: Kind, seed: int, length: int, share: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    head = head_of(kind)
    z = head.project(torch.randn(3, length, F, generator=generator))
    boundary = torch.rand(3, length, generator=generator) < share
    state, steps = head.init_state(3), []
    for t in range(length):
        state, logits = head.step(state, z[:, t], boundary[:, t])
        steps.append(logits)
    # fp32: sums of at most 40 values in another order
    torch.testing.assert_close(torch.stack(steps, 1), head(z, boundary), atol=1e-6, rtol=1e-5)


def test_padding_does_not_change_the_tokens_before_it() -> None:
    head = head_of("memory")
    z, boundary = torch.randn(1, 9, D), torch.tensor([[0, 0, 1, 0, 1, 0, 0, 1, 0]]).bool()
    padded = torch.cat([z, torch.full((1, 4, D), 1e3)], 1)
    marks = torch.cat([boundary, torch.zeros(1, 4, dtype=torch.bool)], 1)
    torch.testing.assert_close(head(padded, marks)[:, :9], head(z, boundary))


def test_memory_signals_stay_those_of_the_last_boundary() -> None:
    head = head_of("memory")
    z, boundary = torch.randn(1, 6, D), torch.tensor([[0, 1, 0, 0, 1, 0]]).bool()
    out = head(z, boundary)[0]
    assert torch.equal(out[1], out[2])
    assert torch.equal(out[2], out[3])
    assert not torch.equal(out[3], out[4])
    assert torch.equal(out[0], head.init_state(1).logits[0])


def test_memory_reads_the_mean_of_the_paragraph() -> None:
    # the same boundary token and mean, spread differently over the paragraph: the same signals
    head = head_of("memory")
    last = torch.randn(D)
    a, b = torch.randn(D), torch.randn(D)
    boundary = torch.tensor([[False, False, True]])
    one = head(torch.stack([a, b, last])[None], boundary)[0, -1]
    two = head(torch.stack([b, a, last])[None], boundary)[0, -1]
    torch.testing.assert_close(one, two)
    three = head(torch.stack([a, a, last])[None], boundary)[0, -1]
    assert (one - three).abs().max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_the_extra_rows_are_the_fused_projection(kind: Kind) -> None:
    # [H + D, F] in one matmul equals the draft's rows and the signal rows apart
    head = head_of(kind)
    fc = nn.Linear(F, 8, bias=False)
    features = torch.randn(4, F)
    fused = torch.cat([fc.weight, head.projection.weight])
    out = features @ fused.T
    torch.testing.assert_close(out[:, :8], fc(features))
    torch.testing.assert_close(out[:, 8:] + head.projection.bias, head.project(features))


def test_signals_have_their_ranges() -> None:
    signals = activate(torch.tensor([[0.0, 0.0, 0.0], [50.0, -50.0, 3.0]]))
    assert signals[0].tolist() == [0.5, 0.5, 1.0]
    assert signals[1, 0] == 1.0
    assert signals[1, 1] < 1e-20
    torch.testing.assert_close(signals[1, 2], torch.tensor(3.0).exp())


def test_low_precision_features_are_read_in_fp32() -> None:
    head = head_of("linear")
    assert head.project(torch.randn(2, F).bfloat16()).dtype == torch.float32


def test_an_unknown_kind_is_refused() -> None:
    kind: Any = "cubic"
    with pytest.raises(ValueError, match=r"signal_head\.kind: 'cubic'"):
        SignalHead(kind, F)
