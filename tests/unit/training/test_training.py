"""The loop: determinism, losslessness, resuming, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specexit.checkpoint import load_signal_head
from specexit.errors import CheckpointError, ConfigError
from specexit.heads.eagle3 import Eagle3Head
from training.export import export_head
from training.loop import NonFiniteLossError, Trainer
from training.memory import KeptFeatures
from training.resume import checkpoints, load_newest, save_checkpoint
from training.run import thinking_features
from training.setup import prepare

from . import synthetic
from .conftest import MakeTrainer


def _draft(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in trainer.run.draft.state_dict().items()}


def _everything(trainer: Trainer) -> dict[str, torch.Tensor]:
    assert trainer.signals is not None
    modules = (trainer.model, trainer.signals.signals, trainer.signals.balancer)
    return {f"{i}.{n}": t.clone() for i, m in enumerate(modules) for n, t in m.state_dict().items()}


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def test_the_token_path_is_bit_identical_with_and_without_signals(
    make_trainer: MakeTrainer,
) -> None:
    drafts = []
    for heads in ([], ["memory"], ["linear"]):
        trainer = make_trainer(signals={"heads": heads}, optim={"clip": 0.05})
        before = _draft(trainer)
        trainer.train(progress=False)
        assert not _same(before, _draft(trainer))
        drafts.append(_draft(trainer))
    assert _same(drafts[0], drafts[1])
    assert _same(drafts[0], drafts[2])


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(
    make_trainer: MakeTrainer,
) -> None:
    found = []
    for seed in (1, 1, 2):
        trainer = make_trainer(seed=seed)
        trainer.train(progress=False)
        found.append(_everything(trainer))
    assert _same(found[0], found[1])
    assert not _same(found[0], found[2])


def test_the_losses_go_down(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(optim={"epochs": 12, "lr": 3e-3}, token={"targets": "hard"})
    trainer.train(progress=False)
    lines = [json.loads(x) for x in (trainer.out / "log.jsonl").read_text().splitlines()]
    for name in ("loss_token", "loss_progress"):
        first = [x[name] for x in lines if x["epoch"] == 0]
        last = [x[name] for x in lines if x["epoch"] == 11]
        assert sum(last) / len(last) < 0.9 * sum(first) / len(first), name
    assert {"weight_remain", "grad_token", "clip_norm_draft", "lr_signals"} <= lines[0].keys()


def test_resumed_training_is_bit_exact(make_trainer: MakeTrainer) -> None:
    straight = make_trainer("straight", optim={"epochs": 2})
    straight.train(progress=False)
    first = make_trainer("resumed", optim={"epochs": 2}, checkpoint={"every": 3})
    for step in first.plan():
        first.one_step(step)
        first.step = step.number + 1
        if first.step == 3:
            save_checkpoint(first)
            break
    second = make_trainer("resumed", optim={"epochs": 2}, checkpoint={"every": 3})
    assert load_newest(second)
    assert second.step == 3
    second.train(progress=False)
    assert _same(_everything(straight), _everything(second))


def test_only_the_last_checkpoints_are_kept(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(optim={"epochs": 2}, checkpoint={"every": 1, "keep_last": 2})
    trainer.train(progress=False)
    assert [p.name for p in checkpoints(trainer.out)] == [
        f"step-{trainer.total - 2:06d}",
        f"step-{trainer.total - 1:06d}",
    ]


def test_a_full_disk_leaves_the_old_checkpoint_whole(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    save_checkpoint(trainer)
    (old,) = checkpoints(trainer.out)
    content = (old / "model.safetensors").read_bytes()
    trainer.step = 7

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("training.resume.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(trainer)
    assert checkpoints(trainer.out) == [old]
    assert (old / "model.safetensors").read_bytes() == content
    assert [p.name for p in (trainer.out / "checkpoints").iterdir()] == [old.name]


def test_resuming_with_other_settings_is_refused(make_trainer: MakeTrainer) -> None:
    save_checkpoint(make_trainer())
    with pytest.raises(CheckpointError, match=r"other config\.optim"):
        load_newest(make_trainer(optim={"lr": 5e-4}))


def test_a_loss_that_is_not_finite_stops_with_the_batch_saved(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    with torch.no_grad():
        trainer.run.draft.norm.weight[0] = float("nan")
    with pytest.raises(NonFiniteLossError, match="not finite at step 0"):
        trainer.train(progress=False)
    saved = json.loads((trainer.out / "bad_batch.json").read_text())
    known = {e.id for e in trainer.run.examples}
    assert saved["traces"]
    assert set(saved["traces"]) <= known


def test_exported_signals_equal_the_trained_ones_on_raw_features(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer()
    trainer.train(progress=False)
    assert trainer.signals is not None
    signals = trainer.signals.signals
    export_head(tmp_path / "head", trainer.run, signals, command="test")
    head, metadata = load_signal_head(tmp_path / "head")
    raw = torch.randn(20, metadata.in_features)
    signals.eval()
    expected = signals.head.project(signals.standardise(raw))
    torch.testing.assert_close(head.project(raw), expected, rtol=0, atol=1e-5)
    loaded = Eagle3Head.load(tmp_path / "head")
    assert _same(_draft(trainer), dict(loaded.state_dict()))
    assert (tmp_path / "head" / "specexit" / "provenance.json").is_file()


def test_d2t_survives_saving_loading_and_training_on(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    """https://github.com/sgl-project/SpecForge/pull/534: a resume rebuilt d2t, so the training
    looked fine and the acceptance died."""
    trainer = make_trainer(draft={"draft_vocab_size": 40})
    trainer.train(progress=False)
    export_head(tmp_path / "head", trainer.run, None, command="test")
    other_data = synthetic.make_data(tmp_path / "other", seed=9)
    config = synthetic.config(
        other_data, Path(trainer.config.target), draft={"init_from": str(tmp_path / "head")}
    )
    run = prepare(config, torch.device("cpu"), progress=False)
    assert torch.equal(run.draft.d2t, trainer.run.draft.d2t)
    assert torch.equal(run.draft.t2d, trainer.run.draft.t2d)
    ids = run.draft.to_target_ids(torch.arange(40))
    assert run.draft.t2d[ids].all()
    assert 0 < run.coverage < 1


def test_a_draft_of_another_width_is_refused(
    make_trainer: MakeTrainer, data: Path, tmp_path: Path
) -> None:
    trainer = make_trainer()
    export_head(tmp_path / "head", trainer.run, None, command="test")
    values = json.loads((tmp_path / "head" / "config.json").read_text())
    values["target_hidden_size"] = 32
    values["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2, 3, 4, 5]
    values["num_aux_hidden_states"] = 6
    (tmp_path / "head" / "config.json").write_text(json.dumps(values))
    config = synthetic.config(
        data, Path(trainer.config.target), draft={"init_from": str(tmp_path / "head")}
    )
    with pytest.raises(CheckpointError, match="hidden size 32"):
        prepare(config, torch.device("cpu"), progress=False)


def test_an_empty_split_is_refused(data: Path, target: Path, tmp_path: Path) -> None:
    from specexit.dataset import read_traces, write_shard

    rest = [t for t in read_traces(data) if t.split != "train"]
    write_shard(tmp_path / "empty" / "data" / "a.parquet", rest)
    config = synthetic.config(tmp_path / "empty", target)
    with pytest.raises(ConfigError, match="no kept trace in split train"):
        prepare(config, torch.device("cpu"), progress=False)


def test_data_of_another_tokenizer_are_refused(target: Path, tmp_path: Path) -> None:
    import random

    from specexit.dataset import write_shard

    trace = synthetic.make_trace(0, random.Random(0), prompt_ids=[1, 999, 3])
    write_shard(tmp_path / "other" / "data" / "a.parquet", [trace])
    with pytest.raises(ConfigError, match="token id 999, the target's vocabulary has 128"):
        prepare(synthetic.config(tmp_path / "other", target), torch.device("cpu"), progress=False)


def test_a_target_without_think_tags_is_refused(data: Path, target: Path, tmp_path: Path) -> None:
    import shutil

    plain = tmp_path / "plain"
    shutil.copytree(target, plain)
    text = (plain / "tokenizer.json").read_text().replace("</think>", "nothing")
    (plain / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match="no think end"):
        prepare(synthetic.config(data, plain), torch.device("cpu"), progress=False)


def test_memory_and_online_features_give_the_same_loss(make_trainer: MakeTrainer) -> None:
    losses = []
    for mode in ("memory", "online"):
        trainer = make_trainer(features={"mode": mode})
        step = next(trainer.plan())
        losses.append(trainer.one_step(step))
    for name in ("loss_token", "loss_confidence", "loss_progress", "loss_remain", "grad_token"):
        assert losses[0][name] == pytest.approx(losses[1][name], rel=1e-5), name


def test_accumulation_does_not_change_a_step(make_trainer: MakeTrainer) -> None:
    records = []
    for accumulation in (1, 2):
        trainer = make_trainer(
            batch={"accumulation": accumulation},
            signals={"dropout": 0.0},
            optim={"warmup_steps": 0},
        )
        trainer.one_step(next(trainer.plan()))
        records.append(_draft(trainer))
    for name, value in records[0].items():
        torch.testing.assert_close(value, records[1][name], rtol=0, atol=2e-5)


def test_signals_are_refined_on_what_the_trained_norms_give(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(
        draft={"norm_before_fc": True, "fc_norm": True}, features={"mode": "memory"}
    )
    trainer.train(progress=False)
    run = trainer.run
    assert isinstance(run.source, KeptFeatures)
    number = next(i for i, e in enumerate(run.examples) if e.thinking is not None)
    thinking = run.examples[number].thinking
    assert thinking is not None
    raw = run.source.of(number)[0][thinking.start :][: len(thinking.labels)]
    assert isinstance(run.draft, Eagle3Head)
    expected = run.draft.normalise(raw)
    found = thinking_features(run, progress=False)[0].features
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, raw, atol=1e-2)
