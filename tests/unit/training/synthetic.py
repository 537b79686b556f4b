"""A small random target and labelled traces for it: real code paths, seconds of work."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from specexit.dataset import Trace, write_shard
from tests.mimo_checkpoint import save_mimo
from training.config import TrainConfig

VOCABULARY = 128
THINK_START, THINK_END, BLANK_LINE, END = 3, 4, 5, 2


def make_target(folder: Path, *, seed: int = 0) -> Path:
    """A random Qwen3 of 4 layers in fp32 with a word-level tokenizer that has think tags."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=VOCABULARY,
        max_position_embeddings=512,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=END,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def make_mimo(folder: Path, *, seed: int = 0, model_type: str = "mimo") -> Path:
    """A random Qwen2 with an MTP layer of MiMo's, made from its last layer, and that tokenizer.

    Engines take `model_type` qwen2 without MiMo's own code.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=2,  # CPU attention of engines needs heads of 32
        num_key_value_heads=1,
        vocab_size=VOCABULARY,
        max_position_embeddings=512,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=END,
        tie_word_embeddings=False,
    )
    state = Qwen2ForCausalLM(config).state_dict()
    save_mimo(folder, config, state, copied_layer=2, model_type=model_type, dtype="float32")
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """A word-level tokenizer that has think tags."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    special = {1: "<s>", END: "</s>", THINK_START: "<think>", THINK_END: "</think>"}
    words = {special.get(i, "\n\n" if i == BLANK_LINE else f"w{i}"): i for i in range(VOCABULARY)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")),
        unk_token="w0",
        bos_token="<s>",
        eos_token="</s>",
    ).save_pretrained(folder)


def make_trace(number: int, rng: random.Random, **changes: Any) -> Trace:
    """Prompt of 5 tokens, 3-6 paragraphs of 3-8 tokens, a short answer."""
    prompt = [1, *(rng.randrange(6, VOCABULARY) for _ in range(3)), THINK_START]
    thinking: list[int] = []
    boundaries = [0]
    for _ in range(rng.randint(3, 6)):
        length = rng.randint(3, 8)
        thinking += [*(rng.randrange(6, VOCABULARY) for _ in range(length)), BLANK_LINE]
        boundaries.append(len(thinking))
    T, K = len(thinking), len(boundaries)
    k_star = rng.randint(1, K - 1)
    t_star = boundaries[k_star]
    share = number % 10
    values: dict[str, Any] = {
        "id": f"trace-{number}",
        "question": f"question {number}",
        "gold": "1",
        "contract": '"boxed_integer"',
        "split": "train" if share < 6 else "calibration" if share < 8 else "test",
        "prompt_ids": prompt,
        "output_ids": [*thinking, THINK_END, rng.randrange(6, VOCABULARY), END],
        "think_start": 0,
        "think_end": T,
        "token_logprobs": [-0.1] * T,
        "boundaries": boundaries,
        "probed": [True] * K,
        "trial_answers": ["1" if k >= k_star else str(k) for k in range(K)],
        "trial_agrees": [k >= k_star for k in range(K)],
        "trial_correct": [k >= k_star for k in range(K)],
        "trial_logprob": [-0.1] * K,
        "trial_tokens": [3] * K,
        "answer": "1",
        "correct": True,
        "k_star": k_star,
        "t_star": t_star,
        "confidence": [rng.random() for _ in range(T)],
        "progress": [min(1.0, (t + 1) / t_star) for t in range(T)],
        "remain": [float(max(0, t_star - t - 1)) for t in range(T)],
        "keep": True,
        "drop_reason": None,
        "meta": "{}",
    }
    return Trace(**(values | changes))


def make_data(folder: Path, n: int = 40, *, seed: int = 0) -> Path:
    """A dataset folder of n traces."""
    rng = random.Random(seed)
    write_shard(folder / "data" / "part-00000.parquet", [make_trace(i, rng) for i in range(n)])
    return folder


def config(
    data: Path, target: Path, *, only_draft: dict[str, Any] | None = None, **sections: Any
) -> TrainConfig:
    """A run of a few steps on them; sections update the defaults, `only_draft` replaces them."""
    values: dict[str, Any] = {
        "data": str(data),
        "target": str(target),
        "draft": only_draft or {"aux_layer_ids": [1, 2, 4]},
        "signals": {"heads": ["memory"], "rows": 8, "readout_size": 16, "refine_epochs": 0},
        "optim": {"epochs": 1, "warmup_steps": 2},
        "batch": {"row_length": 96, "rows": 4},
        "log_every": 1,
    }
    for name, value in sections.items():
        values[name] = values.get(name, {}) | value if isinstance(value, dict) else value
    return TrainConfig.model_validate(values)
