from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from specexit.errors import ConfigError
from specexit.tiny import train as module
from specexit.tiny.settings import TrainSettings
from specexit.tiny.train import Trainer, train

SMALL = TrainSettings(steps=6, tokens=512, warmup=2, checkpoint_every=2)


class KilledError(Exception):
    pass


@pytest.fixture(autouse=True)
def _tokenizer_made_once(
    monkeypatch: pytest.MonkeyPatch, tokenizer: PreTrainedTokenizerFast
) -> None:
    monkeypatch.setattr(module, "make_tokenizer", lambda: tokenizer)


@pytest.fixture(scope="module")
def in_one_piece(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast
) -> Path:
    out = tmp_path_factory.mktemp("whole") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "make_tokenizer", lambda: tokenizer)
        train(out, SMALL, quiet=True)
    return out


def test_the_folder_loads_in_transformers_and_says_how_it_came_to_be(in_one_piece: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(in_one_piece)
    assert model.dtype == torch.bfloat16
    assert model.config.max_position_embeddings == 2048
    assert len(AutoTokenizer.from_pretrained(in_one_piece)) == model.config.vocab_size
    record = json.loads((in_one_piece / "provenance.json").read_text())
    assert record["command"] == "specexit tiny train --out DIR --steps 6"
    assert record["seed"] == 0
    assert record["training"]["tokens"] > 1000
    assert record["config"]["learning_rate"] == SMALL.learning_rate


def test_a_killed_run_resumes_to_the_same_weights(
    in_one_piece: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, out = Trainer.step, tmp_path / "model"

    def dies(self: Trainer, batch: object) -> None:
        if self.step_index == 5:
            raise KilledError
        step(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "step", dies)
    with pytest.raises(KilledError):
        train(out, SMALL, quiet=True)
    assert not out.exists()
    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(ConfigError, match="--resume"):
        train(out, SMALL, quiet=True)
    with pytest.raises(ConfigError, match="seed: 1 differs from 0"):
        train(out, TrainSettings(**{**vars(SMALL), "seed": 1}), resume=True, quiet=True)
    train(out, SMALL, resume=True, quiet=True)
    whole = load_file(in_one_piece / "model.safetensors")
    resumed = load_file(out / "model.safetensors")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        train(tmp_path, SMALL, quiet=True)


def test_the_rate_warms_up_holds_and_decays() -> None:
    settings = TrainSettings(steps=1000, warmup=50, hold=0.1, final=0.01, learning_rate=1.0)
    rates = [settings.rate(step) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / 50)
    assert rates[60] == rates[99] == 1.0
    assert all(a >= b for a, b in itertools.pairwise(rates[100:]))
    assert rates[-1] == pytest.approx(0.01, abs=1e-3)


@pytest.mark.parametrize("field", ["steps", "tokens", "threads"])
def test_settings_name_the_wrong_field(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: 0"):
        TrainSettings(**{field: 0})
