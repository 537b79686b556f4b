"""Training an MTP head: from the target's own layer, with signals, to what engines load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specexit.checkpoint import load_signal_head
from specexit.errors import CheckpointError, ConfigError
from specexit.heads.mtp import MtpHead
from training.cli import main as train_cli
from training.config import TrainConfig
from training.draft import thinking_inputs
from training.evaluate import evaluate_head
from training.features import OnlineTarget
from training.head_cli import describe
from training.head_cli import main as head_cli
from training.loop import Trainer
from training.run import train
from training.setup import Run, prepare

from . import synthetic

MTP = {"method": "mtp"}


@pytest.fixture(scope="module")
def mimo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.make_mimo(tmp_path_factory.mktemp("mimo"))


def settings(data: Path, mimo: Path, **sections: Any) -> TrainConfig:
    return synthetic.config(data, mimo, only_draft=MTP, **sections)


@pytest.fixture(scope="module")
def head(data: Path, mimo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "head"
    config = settings(
        data,
        mimo,
        signals={"refine_epochs": 3},
        optim={"epochs": 8, "lr": 3e-3},
        token={"targets": "hard"},
    )
    train(config, out, command="test", progress=False)
    return out


def run_of(data: Path, mimo: Path, **sections: Any) -> Run:
    return prepare(settings(data, mimo, **sections), torch.device("cpu"), progress=False)


def test_it_starts_from_the_targets_own_layer(data: Path, mimo: Path) -> None:
    draft = run_of(data, mimo).draft
    tensors = load_file(mimo / "model.safetensors")
    layer = "model.mtp_layers.0."
    assert torch.equal(draft.fc.weight, tensors[layer + "input_proj.weight"])
    state = draft.state_dict()
    assert torch.equal(
        state["block.self_attn.k_proj.bias"], tensors[layer + "self_attn.k_proj.bias"]
    )


def test_losses_of_all_draft_steps_and_signals_fall(head: Path) -> None:
    lines = [json.loads(x) for x in (head / "log.jsonl").read_text().splitlines()]
    for name in ("loss_token_0", "loss_token_1", "loss_token_2", "loss_progress"):
        first = [x[name] for x in lines if x["epoch"] == 0]
        last = [x[name] for x in lines if x["epoch"] == 7]
        assert sum(last) / len(last) < 0.9 * sum(first) / len(first), name


def test_the_exported_head_has_the_trained_weights_and_signals(head: Path, mimo: Path) -> None:
    trained, original = MtpHead.load(head), MtpHead.load(mimo)
    different = [
        n for n, t in trained.state_dict().items() if not torch.equal(t, original.state_dict()[n])
    ]
    assert len(different) == len(trained.state_dict())  # every tensor was trained
    signals, metadata = load_signal_head(head)
    assert (metadata.method, metadata.in_features, metadata.aux_layer_ids) == ("mtp", 128, ())
    assert metadata.target.model_type == "mimo"
    assert signals.kind == "memory"
    facts = describe(head, str(mimo))
    assert (facts["layout"], facts["signals"]["kind"]) == ("mtp", "memory")


def reference(mimo: Path, ids: Tensor) -> Tensor:
    """`[n, 2H]` features of every token, from MiMo's tensors by hand; those of token 0 are zero."""
    tensors = load_file(mimo / "model.safetensors")
    target = OnlineTarget(str(mimo), (3,))
    hidden = target.run_padded(ids[None])[0][0]  # before the final norm
    layer = "model.mtp_layers.0."

    def norm(x: Tensor, name: str) -> Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return scaled * tensors[f"{layer}{name}.weight"]

    embedded = norm(tensors["model.embed_tokens.weight"][ids], "token_layernorm")
    rows = torch.cat([norm(hidden, "hidden_layernorm")[:-1], embedded[1:]], -1)
    return torch.cat([torch.zeros(1, rows.shape[1]), rows])


def test_a_token_is_judged_by_its_own_embedding_and_the_state_before_it(
    data: Path, mimo: Path
) -> None:
    run = run_of(data, mimo)
    example = run.examples[0]
    assert example.thinking is not None
    start, length = example.thinking.start, len(example.thinking.labels)
    expected = reference(mimo, example.ids)[start : start + length]
    states = run.draft.select(*run.source.of(0))  # type: ignore[union-attr]
    with torch.no_grad():
        alone = thinking_inputs(run.draft, states, example.ids, example.thinking)
    torch.testing.assert_close(alone, expected, rtol=0, atol=1e-5)
    # the same in a packed row, as training reads them
    trainer = Trainer(run, None, _accelerator(run), "single", Path("unused"))
    step = next(s for s in trainer.plan() if any(0 in row for row in s.rows))
    batch = trainer.collate(step.rows)
    out = trainer.model(batch, run.source.states(batch), trainer.counts(step.rows))
    number = [i for i in batch.examples if run.examples[i].thinking is not None].index(0)
    packed = out.thinking[batch.think_row == number]
    torch.testing.assert_close(packed, expected, rtol=0, atol=1e-5)


def _accelerator(run: Run) -> Any:
    from training.engine import make_accelerator

    return make_accelerator(run.config)


def test_the_token_path_is_bit_identical_with_and_without_signals(
    data: Path, mimo: Path, tmp_path: Path
) -> None:
    found = []
    for heads in ([], ["memory"]):
        out = tmp_path / f"head-{len(heads)}"
        train(settings(data, mimo, signals={"heads": heads}), out, command="test", progress=False)
        found.append(load_file(out / "model.safetensors"))
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


def test_online_features_give_the_loss_of_kept_ones(data: Path, mimo: Path) -> None:
    losses = []
    for mode in ("memory", "online"):
        run = run_of(data, mimo, features={"mode": mode}, signals={"heads": []})
        trainer = Trainer(run, None, _accelerator(run), "single", Path("unused"))
        losses.append(trainer.one_step(next(trainer.plan()))["loss_token"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_evaluation_has_acceptance_and_signals(head: Path, data: Path, mimo: Path) -> None:
    found = evaluate_head(head, data, target=str(mimo), progress=False)
    assert 1 <= found["acceptance_length"] <= 4
    assert {"auc_boundary", "ridge_probe_auc_boundary", "r2_progress"} <= found.keys()


def test_signals_alone_leave_an_mtp_draft_as_it_is(
    head: Path, data: Path, mimo: Path, tmp_path: Path
) -> None:
    out = tmp_path / "linear"
    arguments = ["signals", "--draft", str(head), "--kind", "linear", "--out", str(out), "-q"]
    arguments += [f"data={data}", f"target={mimo}", "signals.refine_epochs=2"]
    assert train_cli(arguments) == 0
    before, after = load_file(head / "model.safetensors"), load_file(out / "model.safetensors")
    assert all(torch.equal(before[n], after[n]) for n in before)
    assert load_signal_head(out)[0].kind == "linear"


def test_a_copy_in_bfloat16_keeps_the_signals(head: Path, tmp_path: Path) -> None:
    out = tmp_path / "bf16"
    assert head_cli(["export", str(head), "--out", str(out), "--dtype", "bfloat16"]) == 0
    assert describe(out)["dtype"] == "bfloat16"
    assert describe(out)["signals"]["kind"] == "memory"
    with pytest.raises(CheckpointError, match="the fused layout is EAGLE3's"):
        head_cli(["export", str(head), "--out", str(tmp_path / "fused"), "--layout", "fused"])


def test_settings_of_the_shape_are_refused() -> None:
    with pytest.raises(
        ValueError, match="takes its shape from the target; remove draft_vocab_size"
    ):
        TrainConfig(data="d", draft={"method": "mtp", "draft_vocab_size": 9})  # type: ignore[arg-type]


def test_a_target_of_no_known_family_is_refused(data: Path, target: Path) -> None:
    with pytest.raises(ConfigError, match="mtp is not known for model_type 'qwen3'"):
        run_of(data, target)
