"""Run real vLLM with a small EAGLE3 drafter and record what the drafter computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass
class Round:
    """One call of the drafter: its first forward pass and the K rows of logits.

    Attributes:
        ids, positions: `[m]` of the first forward; rows of rejected tokens may be among them.
        hidden: `[m, H]`, the combined features.
        logits: K rows `[V] float32` over the target's vocabulary, -inf outside the draft's.
    """

    ids: Tensor
    positions: Tensor
    hidden: Tensor
    logits: list[Tensor] = field(default_factory=list)


@dataclass
class Recording:
    """Text of one greedy request, and the drafter's rounds on the way."""

    prompt: list[int]
    output: list[int]
    rounds: list[Round]


def record(
    target: str | Path,
    draft: str | Path,
    prompt: list[int],
    *,
    method: str = "eagle3",
    k: int = 3,
    max_tokens: int = 12,
) -> Recording:
    """Generate greedily in fp32 with `draft`, in this process, one request."""
    from specexit.engine_env import prepare_in_process_engine

    prepare_in_process_engine()
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(target),
        speculative_config={"method": method, "model": str(draft), "num_speculative_tokens": k},
        max_model_len=256,
        max_num_seqs=1,
        enforce_eager=True,
        dtype="float32",
        enable_prefix_caching=False,
    )
    drafter = _runner(llm).drafter
    rounds: list[Round] = []
    _hook(drafter, rounds)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    out = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0]
    llm.llm_engine.engine_core.shutdown()
    return Recording(prompt, list(out.outputs[0].token_ids), rounds)


def _runner(llm: Any) -> Any:
    core = llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner


def _hook(drafter: Any, rounds: list[Round]) -> None:
    model, propose = drafter.model, drafter.propose
    forward, compute_logits = model.forward, model.compute_logits
    is_first = False

    def recorded_propose(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        is_first = True
        return propose(*args, **kwargs)

    def recorded_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_first
        if is_first:
            kept = (kwargs[n].clone() for n in ("input_ids", "positions", "hidden_states"))
            rounds.append(Round(*kept))
            is_first = False
        return forward(*args, **kwargs)

    def recorded_logits(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        logits = compute_logits(hidden, *args, **kwargs)
        if rounds:
            rounds[-1].logits.append(logits[0].clone().float())
        return logits

    drafter.propose = recorded_propose
    model.forward, model.compute_logits = recorded_forward, recorded_logits


def random_target(kind: str, folder: Path, seed: int = 0, **options: Any) -> Path:
    """A random model of 4 small layers in fp32, `kind` llama or qwen3."""
    import transformers

    shape: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,  # CPU attention needs a multiple of 32
        "vocab_size": 128,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **options,
    }
    torch.manual_seed(seed)
    if kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape))
    model.save_pretrained(folder)
    _save_tokenizer(folder)
    return folder


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"t{i}": i for i in range(128)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="t0", bos_token="t1", eos_token="t2"
    ).save_pretrained(folder)
