"""What the trainer can do besides, on two processes: averages, the best checkpoint, MTP heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pipeline.test_training_distributed import TOLERANCE, _draft, _log, _run
from tests.unit.training import synthetic


def _settings(folder: Path, target: Path, **sections: Any) -> list[str]:
    data = synthetic.make_data(folder / "data", 40)
    values = synthetic.config(
        data, target, signals={"dropout": 0.0}, optim={"epochs": 2, "ema": 0.8}, **sections
    )
    file = folder / "config.yaml"
    file.write_text(json.dumps(values.model_dump(mode="json", exclude_unset=True)))  # JSON is YAML
    return ["-m", "training", "--config", str(file), "-q"]


def _same_as_alone(engine: str, settings: list[str], folder: Path, *extra: str) -> None:
    outs = {}
    for name in ("single", engine):
        outs[name] = folder / name
        done = _run(name, settings, outs[name], f"engine={name}", *extra)
        assert done.returncode == 0, done.stderr[-2000:]
    for one, two in zip(_log(outs["single"]), _log(outs[engine]), strict=True):
        for key in one:
            if key.startswith(("loss_", "valid_")):
                assert two[key] == pytest.approx(one[key], rel=10 * TOLERANCE), (two["step"], key)
    expected, found = _draft(outs["single"]), _draft(outs[engine])
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ["ddp", "zero2"])
def test_averages_and_the_best_checkpoint_are_those_of_one_process(
    engine: str, tmp_path: Path
) -> None:
    settings = _settings(
        tmp_path,
        synthetic.make_target(tmp_path / "target"),
        validation={"every": 3, "traces": 6},
        checkpoint={"best": "loss_token"},
    )
    _same_as_alone(engine, settings, tmp_path)
    best = [
        json.loads((tmp_path / name / "checkpoints" / "best.json").read_text())
        for name in ("single", engine)
    ]
    assert best[0]["step"] == best[1]["step"]


def test_sharded_weights_of_an_mtp_head_are_those_of_one_process(tmp_path: Path) -> None:
    target = synthetic.make_mimo(tmp_path / "target")
    settings = _settings(tmp_path, target, only_draft={"method": "mtp"})
    _same_as_alone("zero3", settings, tmp_path, "optim.ema=null")
