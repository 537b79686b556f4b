"""Losses, gradient balancing, optimiser."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.balance import Balancer, GradientMeter, Norms, sketch
from training.config import BalanceSettings
from training.losses import signal_losses, token_loss
from training.optimiser import GroupClippedAdamW, learning_rate

from .conftest import MakeTrainer


@given(s=st.floats(-30, 30), remain=st.floats(0, 1e5))
def test_remain_loss_is_the_squared_log_error_of_exp(s: float, remain: float) -> None:
    logits = torch.tensor([[0.0, 0.0, s]], dtype=torch.float64)
    labels = torch.tensor([[0.5, 0.5, remain]], dtype=torch.float64)
    loss = signal_losses(logits, labels, torch.ones(1, dtype=torch.float64))[2]
    expected = (math.log1p(math.exp(s)) - math.log1p(remain)) ** 2
    assert float(loss) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_uncertainty_in_parts_has_the_gradient_of_the_whole() -> None:
    losses = torch.tensor([0.1, 0.4, 2.0])
    gradients = []
    for parts in (1, 8):
        balancer = Balancer(BalanceSettings(mode="uncertainty"))
        for _ in range(parts):
            balancer.combine(losses / parts, 1 / parts).backward()
        gradients.append(balancer.log_variance.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_remain_loss_does_not_overflow() -> None:
    logits = torch.tensor([[0.0, 0.0, 200.0]], requires_grad=True)
    loss = signal_losses(logits, torch.zeros(1, 3), torch.ones(1))[2]
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_soft_targets_of_one_token_equal_the_hard_loss() -> None:
    logits, hard = torch.randn(5, 7), torch.randint(0, 7, (5,))
    soft = torch.nn.functional.one_hot(hard, 7).float()
    torch.testing.assert_close(token_loss(logits, soft, hard), token_loss(logits, None, hard))


def test_the_sketch_estimates_the_gradient_norm() -> None:
    torch.manual_seed(0)
    gradient, inputs = torch.randn(200, 64), torch.randn(200, 30)
    exact = (gradient.T @ inputs).norm()
    found = torch.stack([sketch(gradient, inputs, s).norm() for s in range(20)]).mean()
    assert float(found / exact) == pytest.approx(1, abs=0.1)


def test_signal_norms_are_those_of_the_projection_gradient() -> None:
    torch.manual_seed(0)
    projection = torch.nn.Linear(6, 4)
    inputs = torch.randn(9, 6)
    z = projection(inputs)
    losses = [(z[:, i] ** 2).sum() + z[:, 3].sum() * i for i in range(3)]
    gradients = torch.stack([torch.autograd.grad(x, z, retain_graph=True)[0] for x in losses])
    meter = GradientMeter(0)
    for part in (slice(0, 4), slice(4, 9)):  # two micro batches
        meter.add(gradients[:, part], inputs[part], None, None)
    found = meter.norms().signals
    for i, loss in enumerate(losses):
        (exact,) = torch.autograd.grad(loss, projection.weight, retain_graph=True)
        assert float(found[i]) == pytest.approx(float(exact.norm()), rel=1e-5)


def test_weights_are_clipped_and_start_as_configured() -> None:
    balancer = Balancer(BalanceSettings(min_weight=0.5, max_weight=2.0, ema=0.0))
    assert balancer.weights.tolist() == [1, 1, 1]
    balancer.update(Norms(torch.tensor([10.0, 1.0, 0.1]), torch.tensor(1.0)))
    assert balancer.weights.tolist() == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("scale", [1e3, 1e-3])
@pytest.mark.parametrize("kind", ["memory", "linear"])
def test_gradient_mode_holds_the_ratio_when_one_loss_is_scaled(
    make_trainer: MakeTrainer, scale: float, kind: str
) -> None:
    def ratios(mode: str) -> list[float]:
        trainer = make_trainer(
            signals={"heads": [kind]},
            optim={"epochs": 3},
            balance={
                "mode": mode,
                "loss_scale": [1.0, scale, 1.0],
                "max_weight": 1e6,
                "min_weight": 1e-6,
            },
        )
        trainer.train(progress=False)
        balancer = trainer.signals.balancer
        norms, weights = balancer.norms, balancer.weights
        return (weights * norms[1:] / norms[0]).tolist()

    balanced = ratios("gradient")
    assert balanced == pytest.approx([1.0, 1.0, 1.0], rel=1e-6)  # the clip is far away
    fixed = ratios("fixed")
    assert max(fixed) / min(fixed) > 50


def test_uncertainty_learns_its_weights(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(balance={"mode": "uncertainty"}, optim={"epochs": 2})
    trainer.train(progress=False)
    assert trainer.signals.balancer.log_variance.abs().min() > 0


def test_each_group_is_clipped_by_its_own_norm() -> None:
    small, large = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    optimiser = GroupClippedAdamW(
        [
            {"name": "a", "params": [small], "weight_decay": 0.0, "clip": 1.0},
            {"name": "b", "params": [large], "weight_decay": 0.0, "clip": 1.0},
        ],
        lr=0.1,
        betas=(0.9, 0.95),
    )
    small.grad, large.grad = torch.tensor([0.3, 0.4]), torch.tensor([300.0, 400.0])
    optimiser.step()
    assert optimiser.last_norms == pytest.approx({"a": 0.5, "b": 500.0})
    assert small.grad.norm() == pytest.approx(0.5)
    assert large.grad.norm() == pytest.approx(1.0, rel=1e-5)


def test_learning_rate_warms_up_and_ends_at_its_floor() -> None:
    rates = [learning_rate(s, total=100, warmup=10, peak=1.0, floor_ratio=0.1) for s in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == 1.0
    assert rates[-1] == pytest.approx(0.1)
