"""An exported MTP head in stock vLLM computes what the trainer's head computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specexit.heads.mtp import MtpConfig, MtpHead
from tests.unit.training import synthetic
from training.features import OnlineTarget

from .drafter_recorder import Recording, record

K = 3
LOGIT_TOLERANCE = 1e-5  # relative to the row's largest logit: fp32, other kernels each side
HIDDEN_TOLERANCE = 1e-4
FAMILIES = ["mimo", "glm4_moe"]  # Qwen3.5 needs a GPU there


def make_target(family: str, folder: Path) -> Path:
    if family == "mimo":
        return synthetic.make_mimo(folder, model_type="qwen2")
    import transformers

    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "vocab_size": synthetic.VOCABULARY,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "eos_token_id": synthetic.END,
    }
    config = transformers.Glm4MoeConfig(
        **shape,
        first_k_dense_replace=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        num_nextn_predict_layers=1,
    )
    transformers.Glm4MoeForCausalLM(config).save_pretrained(folder)
    synthetic.save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Recording, Path, Path]:
    folder = tmp_path_factory.mktemp("mtp-parity")
    target = make_target(request.param, folder / "target")
    head = MtpHead(MtpConfig.read(target))
    torch.manual_seed(3)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    model = OnlineTarget(str(target), head.config.aux_layer_ids)
    head.bind(model.embedding, model.output_rows).save(folder / "head")
    prompt = torch.randint(6, 128, (23,), generator=torch.Generator().manual_seed(1)).tolist()
    return record(target, folder / "head", prompt, method="mtp", k=K), target, folder / "head"


def test_drafted_logits_match_vllm_at_every_step(run: tuple[Recording, Path, Path]) -> None:
    from transformers import DynamicCache

    recording, path, folder = run
    head = MtpHead.load(folder)
    target = OnlineTarget(str(path), head.config.aux_layer_ids, dtype=torch.float32)
    text = torch.tensor(recording.prompt + recording.output)
    hidden = head.select(*target.run_padded(text[None]))[0]
    cache, errors = DynamicCache(), []
    for one in recording.rounds:
        done = cache.get_seq_length()
        rows = _text_rows(one, text.tolist(), done)
        if rows == 0:
            break
        new = slice(done, done + rows)
        torch.testing.assert_close(one.hidden[:rows], hidden[new], rtol=0, atol=HIDDEN_TOLERANCE)
        logits, out = head.extend(cache, hidden[new], text[done + 1 : done + rows + 1])
        for theirs in one.logits:
            own = logits[-1]
            scale = max(1.0, float(own.abs().max()))
            errors.append(float((own - theirs).abs().max()) / scale)
            logits, out = head.extend(cache, out[-1:], own.argmax()[None])
        cache.crop(done + rows)
    assert len(errors) >= 4 * K
    assert max(errors) <= LOGIT_TOLERANCE, max(errors)


def _text_rows(one: Any, text: list[int], begin: int) -> int:
    """Leading rows of a round that pair the text's tokens, as the engine keeps them."""
    rows = 0
    while rows < len(one.ids) and begin + rows + 1 < len(text):
        if int(one.positions[rows]) != begin + rows:
            break
        if int(one.ids[rows]) != text[begin + rows + 1]:
            break
        rows += 1
    return rows
