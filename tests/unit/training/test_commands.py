"""The commands around training: evaluation, layouts, stored features, speed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specexit.checkpoint import has_signals, load_signal_head
from specexit.errors import CheckpointError, ConfigError
from specexit.heads.eagle3 import Eagle3Head
from training.bench import bench_train
from training.evaluate import evaluate_head
from training.fused import read_fused, write_fused
from training.head_cli import describe
from training.head_cli import main as head_cli
from training.memory import compute_features
from training.run import train
from training.stored import FeatureIndex, open_stored, read_states, write_states

from . import synthetic
from .conftest import MakeTrainer


@pytest.fixture(scope="module")
def heads(data: Path, target: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A memory and a linear head on one draft."""
    out = tmp_path_factory.mktemp("heads") / "head"
    config = synthetic.config(
        data, target, signals={"heads": ["memory", "linear"], "refine_epochs": 3}
    )
    written = train(config, out, command="test", progress=False)
    assert [p.name for p in written] == ["head", "head-linear"]
    return written[0], written[1]


def test_two_kinds_are_trained_on_one_draft(heads: tuple[Path, Path]) -> None:
    memory, linear = heads
    assert (memory / "model.safetensors").read_bytes() == (
        linear / "model.safetensors"
    ).read_bytes()
    assert load_signal_head(memory)[0].kind == "memory"
    assert load_signal_head(linear)[0].kind == "linear"


def test_evaluation_has_all_figures(heads: tuple[Path, Path], data: Path, target: Path) -> None:
    found = evaluate_head(heads[0], data, target=str(target), progress=False)
    assert 1 <= found["acceptance_length"] <= 4
    assert len(found["acceptance_by_position"]) == 3
    names = {
        "r2_progress",
        "r2_log_remain",
        "mae_confidence",
        "auc_boundary",
        "auc_derivation_end",
        "position_auc_boundary",
        "ridge_probe_auc_boundary",
        "n",
        "intervals",
    }
    assert names <= found.keys()
    assert found["n"]["traces"] == 8
    json.dumps(found, allow_nan=False)


def test_evaluating_on_another_target_is_refused(
    heads: tuple[Path, Path], data: Path, tmp_path: Path
) -> None:
    other = synthetic.make_target(tmp_path / "other", seed=5)
    with pytest.raises(CheckpointError, match="another target: fingerprint"):
        evaluate_head(heads[0], data, target=str(other), progress=False)


def test_training_signals_for_an_existing_draft_leaves_it_as_it_is(
    heads: tuple[Path, Path], data: Path, target: Path, tmp_path: Path
) -> None:
    config = synthetic.config(
        data,
        target,
        draft={"init_from": str(heads[0]), "freeze": True},
        signals={"heads": ["mlp"], "refine_epochs": 2},
    )
    (out,) = train(config, tmp_path / "mlp", command="test", progress=False)
    before, after = load_file(heads[0] / "model.safetensors"), load_file(out / "model.safetensors")
    assert all(torch.equal(before[n], after[n]) for n in before)
    assert load_signal_head(out)[0].kind == "mlp"


@pytest.mark.parametrize("number", [0, 1])
def test_the_fused_layout_is_the_same_function_and_comes_back(
    heads: tuple[Path, Path], number: int, target: Path, tmp_path: Path
) -> None:
    head = heads[number]
    write_fused(head, tmp_path / "fused")
    tensors = load_file(tmp_path / "fused" / "model.safetensors")
    draft, (signals, _) = Eagle3Head.load(head), load_signal_head(head)
    x = torch.randn(6, draft.config.in_features)
    fused = x @ tensors["fc.weight"].float().T + tensors["fc.bias"]
    H = draft.config.hidden_size
    assert fused.shape[1] == H + signals.rows
    torch.testing.assert_close(fused[:, :H], draft.combine(x).detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(fused[:, H:], signals.project(x), rtol=0, atol=1e-5)
    read_fused(tmp_path / "fused", tmp_path / "back", str(target))
    back, _ = load_signal_head(tmp_path / "back")
    for name, value in signals.state_dict().items():
        assert torch.equal(value, back.state_dict()[name]), name
    assert torch.equal(Eagle3Head.load(tmp_path / "back").fc.weight, draft.fc.weight)


def test_a_three_row_head_without_metadata_is_taken_in(
    heads: tuple[Path, Path], target: Path, tmp_path: Path
) -> None:
    write_fused(heads[1], tmp_path / "fused")
    tensors = load_file(tmp_path / "fused" / "model.safetensors")
    del tensors["fc.bias"]
    save_file(tensors, tmp_path / "fused" / "model.safetensors")
    config = json.loads((tmp_path / "fused" / "config.json").read_text())
    del config["specexit"]
    (tmp_path / "fused" / "config.json").write_text(json.dumps(config))
    assert (
        head_cli(
            [
                "import",
                str(tmp_path / "fused"),
                "--out",
                str(tmp_path / "in"),
                "--target",
                str(target),
            ]
        )
        == 0
    )
    signals, metadata = load_signal_head(tmp_path / "in")
    assert (signals.kind, metadata.think_end_ids) == ("linear", (synthetic.THINK_END,))


def test_check_refuses_a_second_weight_file(heads: tuple[Path, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(heads[0], copy)
    assert describe(copy)["signals"]["kind"] == "memory"
    save_file({"x": torch.zeros(1)}, copy / "signals.safetensors")
    with pytest.raises(CheckpointError, match=r"signals\.safetensors beside model\.safetensors"):
        describe(copy)


def test_export_keeps_the_signals_and_changes_the_dtype(
    heads: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "bf16"
    assert head_cli(["export", str(heads[0]), "--out", str(out), "--dtype", "bfloat16"]) == 0
    assert has_signals(out)
    assert describe(out)["dtype"] == "bfloat16"
    with pytest.raises(ConfigError, match="is the head itself"):
        head_cli(["export", str(heads[0]), "--out", str(heads[0])])


def test_stored_features_give_the_loss_of_online_ones(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    online = make_trainer(features={"mode": "online"})
    _store(online, tmp_path / "stored", "keep")
    stored = make_trainer(features={"mode": "stored", "folder": str(tmp_path / "stored")})
    records = [t.one_step(next(t.plan())) for t in (online, stored)]
    for name in ("loss_token", "loss_confidence", "loss_progress", "loss_remain"):
        assert records[0][name] == pytest.approx(records[1][name], rel=1e-5), name


def _store(trainer, folder: Path, dtype: str) -> None:  # type: ignore[no-untyped-def]
    """Write a trainer's features as the writer does, from transformers' states."""
    from training.features import OnlineTarget

    ids = (*trainer.run.draft.config.aux_layer_ids, 4)
    layers = tuple(sorted(set(ids)))
    target = OnlineTarget(trainer.run.target_path, layers)
    kept = compute_features(target, trainer.run.examples, device="cpu", progress=False)
    files = {}
    for i, (example, (features, _)) in enumerate(zip(trainer.run.examples, kept, strict=True)):
        states = features.view(len(example), len(layers), -1)
        write_states(folder / f"hs_{i}.safetensors", states, example.ids, dtype)
        files[example.id] = f"hs_{i}.safetensors"
    FeatureIndex(layers, files, trainer.run.target_path).save(folder / "index.json")


def test_float8_states_are_close(tmp_path: Path) -> None:
    states = torch.randn(7, 2, 64) * torch.tensor([1.0, 300.0])[None, :, None]
    write_states(tmp_path / "hs_0.safetensors", states, torch.arange(7), "float8")
    found, ids = read_states(tmp_path / "hs_0.safetensors")
    assert ids.tolist() == list(range(7))
    # e4m3 has 3 bits of mantissa
    assert (
        (found.float() - states).abs() <= states.abs() * 0.07 + states.abs().amax() * 2e-3
    ).all()


def test_stored_features_of_other_data_are_refused(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer()
    _store(trainer, tmp_path, "keep")
    run = trainer.run
    first = run.examples[0]
    (tmp_path / "hs_0.safetensors").unlink()
    write_states(
        tmp_path / "hs_0.safetensors", torch.zeros(len(first), 3, 64), first.ids + 1, "keep"
    )
    source = open_stored(run.target, tmp_path, run.examples)
    with pytest.raises(ConfigError, match=f"another text than trace {first.id}"):
        source.of(0)
    values = json.loads((tmp_path / "index.json").read_text())
    del values["files"][first.id]
    (tmp_path / "index.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="lacks 1 of"):
        open_stored(run.target, tmp_path, run.examples)


def test_bench_pairs_steps_with_and_without_signals(
    data: Path, target: Path, tmp_path: Path
) -> None:
    found = bench_train(synthetic.config(data, target), steps=2, out=tmp_path)
    assert found["steps"] == 2
    assert 0.1 < found["ratio_signals_on_off"] < 3
    assert found["step_ms_packed"] > 0
    assert found["step_ms_unpacked"] > 0
    assert 0.1 < found["ratio_packed_unpacked"] < 30
