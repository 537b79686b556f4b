"""The reference decoder and the vLLM worker, which share no exit code, exit at the same token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import SamplingParams

from inference import hf
from specexit.policy import ExitPolicy

from .chaos import EOS, START

QUESTIONS = 100
TOKENS = 24
K = 1


@pytest.fixture(scope="module", params=["memory", "linear"])
def kind(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Most open the thinking; some hold a part of it, some leave the opening to the model."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for i in range(QUESTIONS):
        words = torch.randint(9, 60, (3 + i % 9,), generator=generator).tolist()
        part = torch.randint(4, 60, (i % 5,), generator=generator).tolist()
        found.append(words if i % 10 == 9 else [*words, START, *(part if i % 4 == 3 else [])])
    return found


@pytest.fixture(scope="module")
def draft(chaos: Path, kind: str) -> hf.Draft:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = str(chaos / "target")
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(target)
    return hf.load_draft(chaos / kind, model, tokenizer)


def reference(draft: hf.Draft, chaos: Path, prompts: list[list[int]], policy: Any) -> list[Any]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(chaos / "target"), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = EOS
    return [
        hf.generate(
            model, draft, ids, policy=policy, num_speculative_tokens=K, max_new_tokens=TOKENS
        )
        for ids in prompts
    ]


def test_both_exit_at_the_same_token_on_every_question(
    chaos: Path, kind: str, draft: hf.Draft, prompts: list[list[int]], engine: Any
) -> None:
    never = ExitPolicy(thresholds={"confidence": 1.0})
    remains = sorted(
        signal[2] for run in reference(draft, chaos, prompts[:12], never) for signal in run.signals
    )
    low = remains[2 * len(remains) // 3]
    high = next(v for v in remains if v > 1.001 * low)
    changes = {
        "signals": ["remain"],
        "thresholds": {"remain": (low + high) / 2},  # between two values: no rounding decides
        "smoothing": {"alpha": 0.5},
    }
    ours = reference(draft, chaos, prompts, ExitPolicy(**changes))
    llm = engine(
        str(chaos / "target"),
        worker_cls="inference.vllm.SpecExitWorker",
        scheduler_cls="inference.vllm.SpecExitScheduler",
        speculative_config={
            "method": "eagle3",
            "model": str(chaos / kind),
            "num_speculative_tokens": K,
        },
    )
    params = SamplingParams(
        temperature=0, max_tokens=TOKENS, extra_args={"specexit": json.dumps(changes)}
    )
    theirs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    differing = []
    for i, (own, output) in enumerate(zip(ours, theirs, strict=True)):
        completion = output.outputs[0]
        record = output.kv_transfer_params["specexit"]
        same = own.output_ids == list(completion.token_ids) and own.exit.kind == record["exit"]
        if own.exit.kind != "none":
            same = same and own.exit.position == record["position"]
            same = same and own.exit.tokens == record["think_tokens"]
            same = same and own.exit.boundary == record["boundary"]
        if own.exit.tokens and own.exit.kind != "none":
            values = [record["signals"][n] for n in ("confidence", "progress", "remain")]
            same = same and own.exit.smoothed == pytest.approx(values, rel=1e-3)
        if not same:
            differing.append((i, own.exit, record))
    assert differing == []
    kinds = [own.exit.kind for own in ours]
    assert kinds.count("injected") >= QUESTIONS // 4
    assert len(set(kinds)) >= 2
