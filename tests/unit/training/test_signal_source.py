"""Signals that read the draft layer's own output: trained and evaluated, never served."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from inference.vllm import head as served
from specexit.checkpoint import load_signal_head
from specexit.config import parse
from specexit.errors import CheckpointError, ConfigError
from training.config import TrainConfig
from training.draft import thinking_inputs
from training.evaluate import evaluate_head
from training.head_cli import describe
from training.run import train

from . import synthetic
from .conftest import MakeTrainer

JOINT = {"source": "draft", "joint": True}


@pytest.fixture(scope="module")
def heads(data: Path, target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trained without signals, with detached ones, and jointly."""
    cases: dict[str, dict[str, Any]] = {
        "plain": {"heads": []},
        "detached": {"source": "draft", "refine_epochs": 2},
        "joint": {**JOINT, "refine_epochs": 2},
    }
    found = {}
    for name, signals in cases.items():
        out = tmp_path_factory.mktemp("source") / name
        train(synthetic.config(data, target, signals=signals), out, command="test", progress=False)
        found[name] = out
    return found


def test_detached_signals_leave_the_draft_as_it_is_and_joint_ones_do_not(
    heads: dict[str, Path],
) -> None:
    plain, detached, joint = (load_file(heads[n] / "model.safetensors") for n in heads)
    assert all(torch.equal(plain[n], detached[n]) for n in plain)
    assert not torch.equal(
        plain["midlayer.mlp.up_proj.weight"], joint["midlayer.mlp.up_proj.weight"]
    )


def test_joint_training_follows_the_gradient_of_the_whole_loss(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(signals={**JOINT, "dropout": 0.0}, optim={"clip": 1e9})
    assert trainer.signals is not None
    step = next(trainer.plan())
    counts, batch = trainer.counts(step.rows), trainer.collate(step.rows)
    out = trainer.model(batch, trainer.run.source.states(batch), counts)
    z = trainer.signals.signals.head.project(trainer.signals.signals.standardise(out.thinking))
    losses = trainer.signals._losses(batch, z) / counts.signals
    parameters = list(trainer.model.parameters())
    expected = torch.autograd.grad(out.loss + losses.sum(), parameters)
    norm = torch.stack([g.norm() for g in expected]).norm()
    record = trainer.one_step(step)
    assert record["clip_norm_draft"] == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.parametrize("number", [0, 3])
def test_a_token_is_not_judged_by_later_ones(make_trainer: MakeTrainer, number: int) -> None:
    run = make_trainer(signals=JOINT).run
    example, source = run.examples[number], run.source
    thinking = example.thinking
    assert thinking is not None
    states = run.draft.select(*source.of(number))  # type: ignore[union-attr]
    at = len(thinking.labels) // 2
    changed, other = example.ids.clone(), states.clone()
    changed[thinking.start + at + 1 :] = 7
    other[thinking.start + at + 1 :] = 0.5
    with torch.no_grad():
        before = thinking_inputs(run.draft, states, example.ids, thinking, "draft")
        after = thinking_inputs(run.draft, other, changed, thinking, "draft")
    assert before.shape == (len(thinking.labels), run.draft.config.hidden_size)
    torch.testing.assert_close(before[: at + 1], after[: at + 1], rtol=0, atol=1e-5)
    assert not torch.allclose(before[at + 2 :], after[at + 2 :], atol=1e-3)


def test_packed_rows_give_what_single_sequences_give(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(signals={"source": "draft"})
    run, step = trainer.run, next(trainer.plan())
    batch = trainer.collate(step.rows)
    out = trainer.model(batch, run.source.states(batch), trainer.counts(step.rows))
    alone = []
    for i in batch.examples:
        thinking = run.examples[i].thinking
        assert thinking is not None
        states = run.draft.select(*run.source.of(i))  # type: ignore[union-attr]
        with torch.no_grad():
            alone.append(thinking_inputs(run.draft, states, run.examples[i].ids, thinking, "draft"))
    torch.testing.assert_close(out.thinking, torch.cat(alone), rtol=0, atol=1e-5)


def test_such_a_head_is_evaluated(heads: dict[str, Path], data: Path, target: Path) -> None:
    found = evaluate_head(heads["joint"], data, target=str(target), progress=False)
    assert {"auc_boundary", "ridge_probe_auc_boundary"} <= found.keys()
    assert describe(heads["joint"], str(target))["signals"]["source"] == "draft"


def test_an_engine_refuses_such_a_head(heads: dict[str, Path]) -> None:
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            method="eagle3", draft_model_config=SimpleNamespace(model=str(heads["joint"]))
        ),
        additional_config={},
    )
    with pytest.raises(CheckpointError, match=r"signals\.source: features to serve"):
        served.load(config, torch.device("cpu"))
    with pytest.raises(CheckpointError, match="ablation for `specexit train eval`"):
        load_signal_head(heads["detached"])


def test_joint_training_of_features_is_refused() -> None:
    with pytest.raises(ConfigError, match="joint: true needs source: draft"):
        parse(TrainConfig, {"data": "d", "signals": {"joint": True}})
