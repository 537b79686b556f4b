"""MTP heads of every family: sequence and step form, files under the target's own names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specexit.errors import CheckpointError, ConfigError
from specexit.heads.mtp import MtpConfig, MtpHead
from training.unroll import step_mask, unroll

STEPS, H, V = 3, 64, 50
SHAPE: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "num_nextn_predict_layers": 1,
}
LINEAR = {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED = {**EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
TARGETS: dict[str, dict[str, Any]] = {
    "mimo": {},
    "glm4_moe": {"head_dim": 16, **ROUTED, "first_k_dense_replace": 1},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        **ROUTED,
    },
    "qwen3_next": {
        **LINEAR,
        **EXPERTS,
        "num_experts": 4,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3_5_text": LINEAR,
}
TOLERANCE = 1e-5  # fp32, other shapes of the same products


def make_head(folder: Path, family: str) -> MtpHead:
    """A random head for a target of which only the configuration exists."""
    folder.mkdir(parents=True, exist_ok=True)
    architecture = "MiMoForCausalLM" if family == "mimo" else "ForCausalLM"
    values = {"model_type": family, "architectures": [architecture], "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps({**SHAPE, **values, **TARGETS[family]}))
    torch.manual_seed(0)
    head = MtpHead(MtpConfig.read(folder))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    return head.bind(torch.randn(V, H), torch.randn(V, H))


@pytest.fixture(params=TARGETS)
def head(request: pytest.FixtureRequest, tmp_path: Path) -> MtpHead:
    return make_head(tmp_path / "target", request.param)


def _unrolled(
    head: MtpHead, hidden: Tensor, ids: Tensor, positions: Tensor, document: Tensor
) -> list[Tensor]:
    following = torch.cat([ids[:, 1:], ids[:, :1]], 1)
    x = head.fc(head.inputs(hidden, following, positions))
    return [head.logits(o) for o in unroll(head, x, ids, positions, document, STEPS)]


@torch.no_grad()
def test_the_sequence_form_equals_the_step_form(head: MtpHead) -> None:
    from transformers import DynamicCache

    n = 11
    ids, hidden = torch.randint(0, V, (1, n)), torch.randn(1, n, H)
    positions, document = torch.arange(n)[None], torch.zeros(1, n, dtype=torch.int64)
    unrolled = _unrolled(head, hidden, ids, positions, document)
    cache = DynamicCache()
    for p in range(n - STEPS - 1):
        row, out = head.extend(cache, hidden[0, p : p + 1], ids[0, p + 1 : p + 2])
        for k in range(STEPS):
            scale = float(row.abs().max())
            torch.testing.assert_close(unrolled[k][0, p], row[0], rtol=0, atol=TOLERANCE * scale)
            row, out = head.extend(cache, out, ids[0, p + k + 2 : p + k + 3])
        cache.crop(p + 1)


@torch.no_grad()
def test_packed_sequences_do_not_see_each_other(head: MtpHead) -> None:
    lengths = (7, 5)
    ids, hidden = torch.randint(0, V, (1, 12)), torch.randn(1, 12, H)
    positions = torch.cat([torch.arange(m) for m in lengths])[None]
    document = torch.cat([torch.full((m,), i) for i, m in enumerate(lengths)])[None]
    packed = _unrolled(head, hidden, ids, positions, document)
    alone = _unrolled(head, hidden[:, 7:], ids[:, 7:], positions[:, 7:], document[:, 7:])
    is_target = torch.ones(1, 12, dtype=torch.bool)
    for k, (both, second) in enumerate(zip(packed, alone, strict=True)):
        rows = step_mask(is_target, document, k)[0, 7:]
        assert rows.any()
        scale = float(second.abs().max())
        found, expected = both[0, 7:][rows], second[0, rows]
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * scale)


@torch.no_grad()
def test_a_saved_head_loads_to_the_same_logits(head: MtpHead, tmp_path: Path) -> None:
    from transformers import DynamicCache

    head.save(tmp_path / "head")
    again = MtpHead.load(tmp_path / "head")
    assert all(torch.equal(t, again.state_dict()[n]) for n, t in head.state_dict().items())
    hidden, ids = torch.randn(6, H), torch.randint(0, V, (6,))
    expected, _ = head.extend(DynamicCache(), hidden, ids)
    assert torch.equal(again.extend(DynamicCache(), hidden, ids)[0], expected)


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("mimo", ["model.mtp_layers.0.input_proj.weight", "model.mtp_layers.0.mlp.up_proj.weight"]),
        (
            "glm4_moe",
            [
                "model.layers.4.eh_proj.weight",
                "model.layers.4.shared_head.norm.weight",
                "model.layers.4.mlp.experts.3.gate_proj.weight",
                "model.layers.4.mlp.gate.e_score_correction_bias",
            ],
        ),
        (
            "qwen3_next",
            [
                "mtp.fc.weight",
                "mtp.pre_fc_norm_hidden.weight",
                "mtp.layers.0.self_attn.q_norm.weight",
                "mtp.layers.0.mlp.experts.0.down_proj.weight",
            ],
        ),
    ],
)
def test_tensors_have_the_names_of_published_checkpoints(
    family: str, names: list[str], tmp_path: Path
) -> None:
    make_head(tmp_path / "target", family).save(tmp_path / "head")
    stored = load_file(tmp_path / "head" / "model.safetensors")
    shared = {"model.embed_tokens.weight", "lm_head.weight"}
    assert {*names, *shared} <= stored.keys()
    assert not any("gate_up_proj" in name for name in stored)
    values = json.loads((tmp_path / "head" / "config.json").read_text())
    assert values["num_nextn_predict_layers"] == 1


def test_a_target_without_an_mtp_layer_is_refused(tmp_path: Path) -> None:
    make_head(tmp_path, "mimo")
    save_file({"model.embed_tokens.weight": torch.zeros(V, H)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="carries no whole MTP layer"):
        MtpHead.load(tmp_path)


def test_a_quantised_layer_is_refused(tmp_path: Path) -> None:
    make_head(tmp_path, "mimo").save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.mtp_layers.0.input_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"stored as torch\.float8_e4m3fn.*copy in bfloat16"):
        MtpHead.load(tmp_path)


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    values = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="mtp is not known for model_type 'llama'"):
        MtpConfig.read(tmp_path)
