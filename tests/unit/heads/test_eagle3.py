"""The EAGLE3 head's files and options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specexit.errors import CheckpointError, ConfigError
from specexit.heads.cache import DraftCache
from specexit.heads.eagle3 import WEIGHTS, Eagle3Head
from specexit.heads.eagle3_config import Eagle3Config, default_aux_layer_ids


def make_head(**options: object) -> Eagle3Head:
    torch.manual_seed(0)
    values: dict[str, object] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 50,
        "draft_vocab_size": 50,
        "aux_layer_ids": (1, 2, 4),
        "target_hidden_size": 32,
        "dtype": "float32",
    }
    return Eagle3Head(Eagle3Config(**(values | options)))  # type: ignore[arg-type]


OPTIONS: list[dict[str, object]] = [
    {},
    {"draft_vocab_size": 20, "norm_before_residual": True},
    {"style": "qwen3", "fc_norm": True, "norm_output": True},
    {"norm_before_fc": True, "attention_bias": True, "aux_layer_ids": (0, 3)},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_saving_and_loading_keeps_every_bit(options: dict[str, object], tmp_path: Path) -> None:
    head = make_head(**options)
    if head.config.maps_vocabulary:
        head.set_vocabulary(torch.arange(20) * 2 + 3)
    head.save(tmp_path)
    loaded = Eagle3Head.load(tmp_path)
    assert loaded.config == head.config
    for name, value in head.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name


def test_norm_before_residual_is_always_written(tmp_path: Path) -> None:
    make_head().save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["norm_before_residual"] is False


@pytest.mark.parametrize("name", ["lm_head.weight", "d2t", "midlayer.self_attn.k_proj.weight"])
def test_a_missing_tensor_is_refused(name: str, tmp_path: Path) -> None:
    """https://github.com/sgl-project/sglang/pull/27908: a head without lm_head was served with
    random weights: every answer fine, acceptance length 1.00."""
    make_head(draft_vocab_size=20).save(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    del tensors[name]
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=rf"{name}: missing, expected"):
        Eagle3Head.load(tmp_path)


def test_a_surplus_tensor_is_refused(tmp_path: Path) -> None:
    make_head().save(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS) | {"signal.weight": torch.zeros(3)}
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"signal\.weight: \(3,\), expected nothing"):
        Eagle3Head.load(tmp_path)


def test_draft_ids_map_to_target_ids() -> None:
    head = make_head(draft_vocab_size=5)
    ids = torch.tensor([3, 4, 10, 40, 49])
    head.set_vocabulary(ids)
    assert torch.equal(head.to_target_ids(torch.arange(5)), ids)
    assert head.t2d.nonzero().flatten().tolist() == ids.tolist()
    with pytest.raises(ValueError, match="ascending"):
        head.set_vocabulary(torch.tensor([4, 3, 10, 40, 49]))


def test_proposing_leaves_only_accepted_rows_in_the_cache() -> None:
    head = make_head().bind_embedding(torch.randn(50, 32))
    cache = DraftCache()
    features = torch.randn(6, head.config.in_features)
    ids = torch.randint(0, 50, (6,))
    whole = head.propose(cache, features, ids, 3)
    assert len(cache) == 6
    stepwise = DraftCache()
    head.propose(stepwise, features[:4], ids[:4], 3)
    again = head.propose(stepwise, features[4:], ids[4:], 3)
    assert torch.equal(whole.ids, again.ids)
    torch.testing.assert_close(whole.logits, again.logits, rtol=0, atol=1e-5)


def test_a_shifted_position_or_layer_order_changes_the_drafts() -> None:
    head = make_head().bind_embedding(torch.randn(50, 32))
    features = torch.randn(6, head.config.in_features)
    ids = torch.randint(0, 50, (6,))
    right = head.propose(DraftCache(), features, ids, 2).logits
    swapped = features.roll(32, -1)
    assert (head.propose(DraftCache(), swapped, ids, 2).logits - right).abs().max() > 1e-3
    hidden = head.combine(features)
    moved, _ = head.extend(DraftCache(), hidden[:, :], ids, first=0)
    off, _ = head.extend(DraftCache(), hidden.roll(1, 0), ids, first=0)
    assert (moved[-1] - off[-1]).abs().max() > 1e-3


@pytest.mark.parametrize("ids", [(), (2, 1), (1, 1), (-1, 2)])
def test_layer_ids_that_engines_would_reorder_are_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="distinct, ascending"):
        make_head(aux_layer_ids=ids)


@pytest.mark.parametrize("layers", [2, 4, 6, 8, 28, 36])
def test_default_layer_ids_are_distinct(layers: int) -> None:
    ids = default_aux_layer_ids(layers)
    assert list(ids) == sorted(set(ids))
    assert ids[-1] <= layers
    if layers >= 8:
        assert ids == (2, layers // 2, layers - 3)


def test_a_config_without_layer_ids_is_refused(tmp_path: Path) -> None:
    make_head().save(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    del values["eagle_aux_hidden_state_layer_ids"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="eagle_aux_hidden_state_layer_ids is missing"):
        Eagle3Head.load(tmp_path)


def test_a_failed_save_keeps_the_old_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = make_head()
    head.save(tmp_path)
    before = (tmp_path / WEIGHTS).read_bytes()

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specexit.heads.eagle3.save_file", full)
    with torch.no_grad():
        head.fc.weight.zero_()
    with pytest.raises(OSError, match="No space"):
        head.save(tmp_path)
    assert (tmp_path / WEIGHTS).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", WEIGHTS]
