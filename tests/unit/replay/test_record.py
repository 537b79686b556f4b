"""Offline signals equal the head driven token by token on the target's own hidden states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference.study.record import SignalRecorder
from specexit.checkpoint import HeadMetadata, save_signal_head, target_facts
from specexit.errors import CheckpointError
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.eagle3_config import Eagle3Config
from specexit.heads.signal import KINDS, SignalHead, activate
from tests.unit.replay.tables import trace

LAYERS, WIDTH, VOCABULARY = 4, 32, 16
AUX = (1, 2, 4)  # 4 is the last layer's output, before the final norm


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("target")
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    return folder


def make_head(folder: Path, target: Path, kind: Any, **options: bool) -> SignalHead:
    torch.manual_seed(1)
    config = Eagle3Config(
        hidden_size=WIDTH,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCABULARY,
        draft_vocab_size=VOCABULARY,
        aux_layer_ids=AUX,
        target_hidden_size=WIDTH,
        **options,
    )
    draft = Eagle3Head(config)
    for name, tensor in draft.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(tensor, 0.5, 1.5)
    draft.save(folder)
    head = SignalHead(kind, config.in_features, rows=8)
    metadata = HeadMetadata(
        kind=kind,
        rows=head.rows,
        in_features=config.in_features,
        aux_layer_ids=AUX,
        think_start_ids=(9,),
        think_end_ids=(8,),
        target=target_facts(target),
    )
    save_signal_head(folder, head, metadata)
    return head


def made_traces() -> list[Any]:
    random = np.random.default_rng(0)
    traces = []
    for i, tokens in enumerate([7, 31, 18]):
        marks = [0, *(np.flatnonzero(random.random(tokens) < 0.3) + 1).tolist()]
        made = trace(i, marks, tokens, [True] * len(marks))
        ids = random.integers(0, VOCABULARY, len(made.output_ids)).tolist()
        traces.append(replace(made, output_ids=ids))
    return traces


def slow_signals(target: Path, draft: Eagle3Head, head: SignalHead, row: Any) -> np.ndarray:
    """`SignalHead.step` on hidden states from hooks of a model of its own, one trace at a time."""
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    last: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: last.append(args[0]))
    ids = torch.tensor([row.prompt_ids + row.output_ids])
    with torch.no_grad():
        states = model.model(ids, output_hidden_states=True).hidden_states
        picked = [*(states[i] for i in AUX[:-1]), last[0]]
        features = draft.normalise(torch.cat(picked, -1)[0])
        state, out = head.init_state(1), []
        begin = len(row.prompt_ids) + row.think_start
        for t in range(row.think_end - row.think_start):
            z = head.project(features[begin + t])[None]
            state, logits = head.step(state, z, torch.tensor([t + 1 in row.boundaries]))
            out.append(activate(logits)[0])
    return torch.stack(out).numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"norm_before_fc": True}, {"fc_norm": True}])
def test_recorded_signals_equal_the_head_driven_token_by_token(
    target: Path, tmp_path: Path, kind: str, options: dict[str, bool]
) -> None:
    head = make_head(tmp_path, target, kind, **options)
    rows = made_traces()
    recorder = SignalRecorder(target, tmp_path)
    recorded = recorder.record(rows, batch_size=3, quiet=True)
    for row, found in zip(rows, recorded, strict=True):
        expected = slow_signals(target, Eagle3Head.load(tmp_path), head, row)
        np.testing.assert_allclose(found.signals, expected, atol=1e-4, rtol=1e-4)


def test_batches_do_not_change_the_signals(target: Path, tmp_path: Path) -> None:
    make_head(tmp_path, target, "memory")
    recorder = SignalRecorder(target, tmp_path)
    together = recorder.record(made_traces(), batch_size=3, quiet=True)
    alone = recorder.record(made_traces(), batch_size=1, quiet=True)
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a.signals, b.signals, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(a.entropy, b.entropy, atol=1e-5)
        assert (a.entropy > 0).all()


def test_features_give_the_signals(target: Path, tmp_path: Path) -> None:
    head = make_head(tmp_path, target, "linear")
    recorder = SignalRecorder(target, tmp_path)
    [row] = made_traces()[:1]
    [features] = recorder.features([row], quiet=True)
    [recorded] = recorder.record([row], quiet=True)
    signals = activate(head.project(features)).detach().numpy()
    np.testing.assert_allclose(signals, recorded.signals, rtol=2e-2, atol=2e-3)  # float16


def test_entropy_after_a_think_end_equals_that_of_a_text_that_ends_there(
    target: Path, tmp_path: Path
) -> None:
    from transformers import Qwen3ForCausalLM

    make_head(tmp_path, target, "memory")
    [row] = made_traces()[1:2]
    [found] = SignalRecorder(target, tmp_path, end_entropy=True).record([row], quiet=True)
    assert found.end_entropy is not None
    model = Qwen3ForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    for k, b in enumerate(row.boundaries):
        ids = [*row.prompt_ids, *row.output_ids[: row.think_start + b], 8]
        with torch.no_grad():
            logs = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        expected = float(-(logs.exp() * logs).sum())
        assert found.end_entropy[k] == pytest.approx(expected, abs=1e-5)


def test_head_of_another_target_is_refused(target: Path, tmp_path: Path) -> None:
    from transformers import Qwen3ForCausalLM

    make_head(tmp_path / "head", target, "linear")
    other = Qwen3ForCausalLM.from_pretrained(target)
    other.model.layers[0].mlp.up_proj.weight.data += 1
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="fingerprint"):
        SignalRecorder(tmp_path / "other", tmp_path / "head")
