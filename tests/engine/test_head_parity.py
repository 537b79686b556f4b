"""The plain EAGLE3 head computes what vLLM's drafter computes, on transformers' features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specexit.heads.cache import DraftCache
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.eagle3_config import Eagle3Config

from .drafter_recorder import Recording, random_target, record

K = 3
# Relative to the largest logit of the row (they go up to about 10): fp32, other kernels each side.
LOGIT_TOLERANCE = 1e-5
FEATURE_TOLERANCE = 1e-4

CASES: dict[str, dict[str, Any]] = {
    "llama, 3 layers, full vocabulary": {
        "target": "llama",
        "aux_layer_ids": (1, 2, 4),
    },
    "qwen3, small draft vocabulary, normed residual": {
        "target": "qwen3",
        "aux_layer_ids": (0, 2, 3),
        "draft_vocab_size": 80,
        "norm_before_residual": True,
    },
    "qwen3-style layer, 2 layers, norm before fc": {
        "target": "qwen3",
        "aux_layer_ids": (1, 3),
        "style": "qwen3",
        "norm_before_fc": True,
        "norm_output": True,
    },
    "llama, fc norms, biases, llama3 rope": {
        "target": "llama",
        "target_options": {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        "aux_layer_ids": (1, 2, 3),
        "fc_norm": True,
        "attention_bias": True,
        "draft_vocab_size": 64,
    },
}


@pytest.fixture(scope="module", params=CASES, ids=list(CASES))
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Recording, Path, Path]:
    case = dict(CASES[request.param])
    folder = tmp_path_factory.mktemp("parity")
    target = random_target(case.pop("target"), folder / "target", **case.pop("target_options", {}))
    draft = _random_head(target, folder / "draft", **case)
    prompt = torch.randint(6, 128, (23,), generator=torch.Generator().manual_seed(1)).tolist()
    return record(target, draft, prompt, k=K), target, draft


def _random_head(target: Path, folder: Path, **options: Any) -> Path:
    from transformers import AutoConfig

    torch.manual_seed(3)
    config = Eagle3Config.for_target(AutoConfig.from_pretrained(target), dtype="float32", **options)
    head = Eagle3Head(config)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    if config.maps_vocabulary:
        picked = torch.randperm(config.vocab_size)[: config.draft_vocab_size]
        head.set_vocabulary(picked.sort().values)
    head.save(folder)
    return folder


def _features(target: Path, ids: list[int], aux_layer_ids: tuple[int, ...]) -> Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    last: list[Tensor] = []
    model.model.layers[-1].register_forward_hook(lambda _m, _i, out: last.append(out))
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    layers = len(model.model.layers)
    picked = [last[0] if i == layers else states[i] for i in aux_layer_ids]
    return torch.cat(picked, -1)[0]


def _embedding(target: Path) -> Tensor:
    from safetensors.torch import load_file

    return load_file(target / "model.safetensors")["model.embed_tokens.weight"]


def test_combined_features_match_transformers(run: tuple[Recording, Path, Path]) -> None:
    recording, target, folder = run
    head = Eagle3Head.load(folder)
    text = recording.prompt + recording.output
    expected = head.combine(_features(target, text, head.config.aux_layer_ids)).detach()
    for one in recording.rounds:
        valid = [j for j, p in enumerate(one.positions.tolist()) if _is_text(text, one, j, p)]
        assert valid, "the rows of a round must hold text"
        rows = one.positions[valid]
        torch.testing.assert_close(
            one.hidden[valid], expected[rows], rtol=0, atol=FEATURE_TOLERANCE
        )


def test_drafted_logits_match_vllm_at_every_step(run: tuple[Recording, Path, Path]) -> None:
    recording, target, folder = run
    head = Eagle3Head.load(folder).bind_embedding(_embedding(target))
    text = recording.prompt + recording.output
    features = _features(target, text, head.config.aux_layer_ids)
    errors = compare_drafts(head, recording, features)
    assert len(errors) >= 4 * K
    assert max(errors) <= LOGIT_TOLERANCE, max(errors)


def compare_drafts(head: Eagle3Head, recording: Recording, features: Tensor) -> list[float]:
    """Drive `propose` along the text as the engine did; largest error of each drafted row."""
    text = torch.tensor(recording.prompt + recording.output)
    cache, errors = DraftCache(), []
    mapped = head.to_target_ids(torch.arange(head.config.draft_vocab_size))
    for one in recording.rounds:
        done = len(cache)
        rows = 0
        while rows < len(one.ids) and _is_text(text.tolist(), one, rows, done + rows):
            rows += 1
        if rows == 0:
            break
        proposal = head.propose(
            cache, features[done : done + rows], text[done + 1 : done + rows + 1], K
        )
        for own, theirs in zip(proposal.logits, one.logits, strict=True):
            assert torch.isfinite(theirs).sum() == len(mapped)
            scale = max(1.0, float(own.abs().max()))
            errors.append(float((own - theirs[mapped]).abs().max()) / scale)
    return errors


def _is_text(text: list[int], one: Any, row: int, position: int) -> bool:
    at = int(one.positions[row])
    return at == position and at + 1 < len(text) and int(one.ids[row]) == text[at + 1]
