"""A random target and head: small enough for seconds, real enough to decode with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from inference.hf import Draft, load_draft
from specexit.checkpoint import HeadMetadata, save_signal_head, target_facts
from specexit.heads.eagle3 import Eagle3Head
from specexit.heads.eagle3_config import Eagle3Config
from specexit.heads.signal import Kind, SignalHead

TEXTS = [
    "<pad>", "<eos>", "<think>", "</think>", "\n\n", ".\n\n", "\n", "So", " ", ".", "x", "y", "z",
    "\\boxed{", "}", "</", "end", ">", *map(str, range(10)),
    *(f" w{chr(97 + i % 26)}{i // 26 * 'x'}" for i in range(36)),
]  # fmt: skip
START, END, BLANK = 2, 3, 4


class Parts(NamedTuple):
    """A target, its tokenizer, and where its head of each kind lies."""

    model: Any
    tokenizer: Any
    folder: Path


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """One token for each of `TEXTS`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({t: i for i, t in enumerate(TEXTS)}, unk_token="<pad>"))
    longest_first = sorted(TEXTS, key=len, reverse=True)
    words = "|".join(map(re.escape, longest_first))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(words), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<pad>", pad_token="<pad>", eos_token="<eos>"
    )


@pytest.fixture(scope="session")
def parts(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A random Qwen3 whose greedy text depends on its context and often has blank lines."""
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("hf")
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=len(TEXTS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.08,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(0, 1.0)
        rows = model.lm_head.weight
        rows.normal_(0, 0.2)
        rows[:4] *= 0.2
        rows[BLANK] *= 1.6
    model.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    model = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).eval()
    return Parts(model, tokenizer, folder)


@pytest.fixture(scope="session", params=["linear", "memory"])
def draft(parts: Parts, request: pytest.FixtureRequest) -> Draft:
    """A random head of each kind."""
    kind: Kind = request.param
    folder = parts.folder / kind
    config = Eagle3Config.for_target(parts.model.config, aux_layer_ids=(1, 2, 4), dtype="float32")
    torch.manual_seed(2)
    eagle = Eagle3Head(config)
    for parameter in eagle.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    with torch.no_grad():
        # Drafts that often follow the target: its own output rows.
        eagle.lm_head.weight.copy_(parts.model.lm_head.weight)
    eagle.save(folder)
    signals = SignalHead(kind, config.in_features, rows=8)
    torch.nn.init.normal_(signals.projection.weight, std=0.3)
    save_signal_head(
        folder,
        signals,
        HeadMetadata(
            kind=kind,
            rows=signals.rows,
            in_features=config.in_features,
            aux_layer_ids=config.aux_layer_ids,
            think_start_ids=(START,),
            think_end_ids=(END,),
            target=target_facts(parts.folder / "target"),
        ),
    )
    return load_draft(folder, parts.model, parts.tokenizer)
