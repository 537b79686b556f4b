"""Every shipped training configuration is valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from specexit.config import load
from training.config import TrainConfig

CONFIGS = sorted((Path(__file__).resolve().parents[3] / "configs" / "train").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_a_shipped_configuration_is_valid_and_says_how_to_launch(path: Path) -> None:
    config = load(TrainConfig, str(path), [])
    assert f"--config configs/train/{path.name} --out" in path.read_text()
    assert config.batch.rows % config.batch.accumulation == 0


def test_there_is_one_for_an_mtp_model() -> None:
    assert any(load(TrainConfig, str(p), []).draft.method == "mtp" for p in CONFIGS)
