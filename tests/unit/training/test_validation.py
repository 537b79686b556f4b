"""Held-out figures, the best checkpoint by one of them, and averaged weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specexit.config import parse
from specexit.errors import ConfigError
from training import validation
from training.config import TrainConfig
from training.loop import Trainer
from training.resume import checkpoints, load_newest, save_best, save_checkpoint
from training.run import train
from training.validation import is_better, validate

from . import synthetic
from .conftest import MakeTrainer

HELD = {"every": 2, "traces": 6}


def _state(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in trainer.run.draft.state_dict().items()}


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def _best(trainer: Trainer) -> dict[str, Any]:
    return json.loads((trainer.out / "checkpoints" / "best.json").read_text())


def _lines(trainer: Trainer) -> list[dict[str, float]]:
    return [json.loads(x) for x in (trainer.out / "log.jsonl").read_text().splitlines()]


def test_held_out_traces_are_never_trained_on(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(validation=HELD, optim={"epochs": 2})
    trained = {i for step in trainer.plan() for row in step.rows for i in row}
    held = {i for row in trainer.held_out for i in row}
    assert len(held) == 6
    assert not trained & held
    assert trained | held == set(range(len(trainer.run.examples)))


def test_figures_are_those_of_all_held_out_traces_at_once(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(validation=HELD, batch={"rows": 1})
    found = validate(trainer)
    rows = trainer.held_out
    assert len(rows) > 1
    batch = trainer.collate(rows)
    out = trainer.model(batch, trainer.run.source.states(batch), trainer.counts(rows))
    assert found["valid_loss_token"] == pytest.approx(out.loss.item(), rel=1e-5)
    m = out.matches.tolist()
    expected = 1 + m[0] + m[0] * m[1] + m[0] * m[1] * m[2]
    assert found["valid_acceptance"] == pytest.approx(expected, rel=1e-5)
    assert found["valid_loss_signals"] > 0


def test_validation_changes_no_bit_of_the_training(make_trainer: MakeTrainer) -> None:
    often = make_trainer("often", validation=HELD, optim={"epochs": 3, "ema": 0.9})
    once = make_trainer("once", validation={**HELD, "every": 1000}, optim={"epochs": 3, "ema": 0.9})
    for trainer in (often, once):
        trainer.train(progress=False)
    assert _same(_state(often), _state(once))


@pytest.mark.parametrize(
    ("metric", "values", "kept"),
    [
        ("loss_token", [3.0, 1.0, 2.0], 4),
        ("acceptance", [1.0, 3.0, 2.0], 4),
        ("loss_signals", [3.0, float("nan"), 2.0], 5),
    ],
)
def test_the_best_checkpoint_is_kept_beside_the_last_and_taken_in_the_end(
    make_trainer: MakeTrainer,
    monkeypatch: pytest.MonkeyPatch,
    metric: str,
    values: list[float],
    kept: int,
) -> None:
    trainer = make_trainer(
        validation=HELD,
        optim={"max_steps": 5, "epochs": 9},
        checkpoint={"every": 1, "keep_last": 1, "best": metric},
    )
    given, states = iter(values), {}

    def scripted(one: Trainer) -> dict[str, float]:
        states[one.step] = _state(one)
        return {f"valid_{metric}": next(given)}

    monkeypatch.setattr(validation, "validate", scripted)
    trainer.train(progress=False)
    assert sorted(states) == [2, 4, 5]
    folder = trainer.out / "checkpoints"
    assert [p.name for p in checkpoints(trainer.out)] == ["step-000004"]
    assert [p.name for p in folder.glob("best-*")] == [f"best-{kept:06d}"]
    assert (_best(trainer)["metric"], _best(trainer)["step"]) == (metric, kept)
    assert _same(_state(trainer), states[kept])


def test_a_best_that_cannot_be_written_leaves_the_one_before(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(validation=HELD, checkpoint={"best": "loss_token"})
    trainer.best = {"metric": "loss_token", "value": 2.0, "step": 0}
    save_best(trainer)
    before = {p: p.read_bytes() for p in (trainer.out / "checkpoints").rglob("*") if p.is_file()}
    trainer.step, trainer.best = 3, {"metric": "loss_token", "value": 1.0, "step": 3}

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("training.resume.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_best(trainer)
    after = {p: p.read_bytes() for p in (trainer.out / "checkpoints").rglob("*") if p.is_file()}
    assert after == before


def test_a_resumed_run_knows_the_best_so_far_and_the_averages(make_trainer: MakeTrainer) -> None:
    sections: dict[str, Any] = {
        "validation": HELD,
        "optim": {"epochs": 2, "ema": 0.8},
        "checkpoint": {"every": 3, "best": "loss_token"},
    }
    straight = make_trainer("straight", **sections)
    straight.train(progress=False)
    first = make_trainer("resumed", **sections)
    first.out.mkdir()
    for step in first.plan():
        first.one_step(step)
        first.step = step.number + 1
        if first.step == 2:
            validation.validate_and_keep_best(first)
        if first.step == 3:
            save_checkpoint(first)
            break
    second = make_trainer("resumed", **sections)
    assert load_newest(second)
    assert second.best is not None
    assert second.best["step"] == 2
    second.train(progress=False)
    assert _best(second) == _best(straight)
    assert _same(_state(straight), _state(second))


def test_the_exported_head_has_the_averaged_weights(
    data: Path, target: Path, tmp_path: Path
) -> None:
    heads = {}
    for ema in (None, 0.5):
        optim = {"epochs": 1, "max_steps": 3, "ema": ema, "warmup_steps": 0}
        config = synthetic.config(
            data, target, optim=optim, checkpoint={"every": 1, "keep_last": 9}
        )
        out = tmp_path / f"head-{ema}"
        train(config, out, command="test", progress=False)
        heads[ema] = out
    # the raw weights of each step: those of the run without averages
    raw = [
        load_file(p / "model.safetensors") for p in checkpoints(heads[None])
    ]  # steps 1 and 2; step 3 is the exported head
    last, found = (load_file(heads[e] / "model.safetensors") for e in (None, 0.5))
    for name, value in found.items():
        if not value.is_floating_point():
            continue
        expected = raw[0][f"draft.{name}"].lerp(raw[1][f"draft.{name}"], 0.5).lerp(last[name], 0.5)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


def test_nothing_to_choose_the_best_by_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.best: loss_token needs validation\.every"):
        parse(TrainConfig, {"data": "d", "checkpoint": {"best": "loss_token"}})
    with pytest.raises(ConfigError, match=r"loss_signals needs signals\.heads"):
        parse(
            TrainConfig,
            {
                "data": "d",
                "checkpoint": {"best": "loss_signals"},
                "validation": {"every": 1},
                "signals": {"heads": []},
            },
        )


def test_holding_out_everything_is_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ConfigError, match=r"validation\.traces: 99 of the 24 traces"):
        make_trainer(validation={"every": 1, "traces": 99})


def test_a_value_that_is_not_finite_is_never_the_best() -> None:
    assert not is_better("loss_token", float("nan"), None)
    assert not is_better("acceptance", float("inf"), 1.0)
    assert is_better("acceptance", 2.0, 1.0)
    assert not is_better("loss_token", 2.0, 1.0)
