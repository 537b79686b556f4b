"""One small target, one dataset and one launch for all tests of the trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from training.config import TrainConfig
from training.engine import make_accelerator
from training.loop import Trainer
from training.refine import new_signals
from training.run import thinking_features
from training.setup import prepare

from . import synthetic

MakeTrainer = Callable[..., Trainer]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def make_trainer(data: Path, target: Path, tmp_path: Path) -> MakeTrainer:
    """`make_trainer(out="run", **config sections)` -> a trainer that has not stepped yet."""

    def make(out: str = "run", **sections: Any) -> Trainer:
        config: TrainConfig = synthetic.config(data, target, **sections)
        run = prepare(config, torch.device("cpu"), progress=False)
        signals = None
        if config.signals.heads:
            torch.manual_seed(config.seed)
            items = thinking_features(run, progress=False)
            signals = new_signals(config.signals.heads[0], items, config.signals)
        return Trainer(run, signals, make_accelerator(config), "single", tmp_path / out)

    return make
