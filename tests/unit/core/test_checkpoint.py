"""The head's `specexit/` folder: round trip, and refusals that say what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specexit.checkpoint import (
    HeadMetadata,
    TargetFacts,
    check_target,
    has_signals,
    load_metadata,
    load_signal_head,
    save_signal_head,
    target_fingerprint,
)
from specexit.errors import CheckpointError, ConfigError
from specexit.files import read_json, write_json
from specexit.heads.signal import SignalHead

TARGET = TargetFacts(
    model_type="qwen3", hidden_size=4, num_hidden_layers=6, vocab_size=50, fingerprint="ab"
)


def saved(folder: Path, **changes: Any) -> HeadMetadata:
    head = SignalHead("memory", 12, rows=5)
    metadata = HeadMetadata(
        kind="memory",
        rows=5,
        in_features=12,
        aux_layer_ids=(1, 3, 5),
        think_start_ids=(1,),
        think_end_ids=(2,),
        target=TARGET,
        **changes,
    )
    save_signal_head(folder, head, metadata)
    return metadata


def test_a_saved_head_comes_back_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    metadata = saved(tmp_path)
    head, found = load_signal_head(tmp_path)
    assert found == metadata
    z = torch.randn(1, 7, 5)
    again, _ = load_signal_head(tmp_path)
    marks = torch.tensor([[0, 1, 0, 0, 1, 0, 1]]).bool()
    assert torch.equal(head(z, marks), again(z, marks))
    assert not head.training


def test_a_plain_head_is_told_apart(tmp_path: Path) -> None:
    assert not has_signals(tmp_path)
    with pytest.raises(CheckpointError, match="plain draft head"):
        load_metadata(tmp_path)


@pytest.mark.parametrize("change", ["drop", "add", "reshape"])
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, change: str) -> None:
    saved(tmp_path)
    file = tmp_path / "specexit" / "signal_head.safetensors"
    tensors = load_file(str(file))
    name = "gru.weight_hh"
    if change == "drop":
        del tensors[name]
    elif change == "reshape":
        tensors[name] = tensors[name][:, :2].contiguous()
    else:
        name = "surplus"
        tensors[name] = torch.zeros(1)
    save_file(tensors, str(file))
    with pytest.raises(CheckpointError, match=name):
        load_signal_head(tmp_path)


def test_an_unknown_metadata_key_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    file = tmp_path / "specexit" / "specexit.json"
    write_json(file, read_json(file) | {"kidn": 1})
    with pytest.raises(ConfigError, match="kidn: unknown key"):
        load_metadata(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    file = tmp_path / "specexit" / "specexit.json"
    write_json(file, read_json(file) | {"format_version": 2})
    with pytest.raises(ConfigError, match="format_version"):
        load_metadata(tmp_path)


def test_another_target_is_refused_with_every_difference(tmp_path: Path) -> None:
    metadata = saved(tmp_path)
    check_target(metadata, TARGET)
    other = TARGET.model_copy(update={"hidden_size": 8, "vocab_size": 60})
    with pytest.raises(CheckpointError, match=r"hidden_size is 8.*expects 4.*vocab_size is 60"):
        check_target(metadata, other)


def test_other_weights_are_refused_unless_asked_for(tmp_path: Path) -> None:
    metadata = saved(tmp_path)
    other = TARGET.model_copy(update={"fingerprint": "cd"})
    with pytest.raises(CheckpointError, match="fingerprint"):
        check_target(metadata, other)
    check_target(metadata, other, weights=False)
    check_target(metadata, TARGET.model_copy(update={"fingerprint": None}))


def test_the_fingerprint_changes_with_the_weights(tmp_path: Path) -> None:
    assert target_fingerprint(tmp_path) is None
    assert target_fingerprint("org/name") is None
    save_file({"w": torch.zeros(3)}, str(tmp_path / "model.safetensors"))
    first = target_fingerprint(tmp_path)
    save_file({"w": torch.ones(3)}, str(tmp_path / "model.safetensors"))
    assert first != target_fingerprint(tmp_path)
