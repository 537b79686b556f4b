"""Signals of an MTP draft in a real vLLM engine (V1, CPU, fp32): right, and exits exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm import SamplingParams

from specexit.checkpoint import load_signal_head
from specexit.heads.signal import activate
from tests.engine import oracle
from tests.engine.boundaries import boundaries
from tests.engine.chaos import END, START
from tests.engine.mimo import features, make_mimo

LENGTH = 60
TOLERANCE = 1e-4  # fp32 sums of some thousand terms in another order
LOOSE = {"signals": ["remain"], "thresholds": {"remain": 1e9}}


@pytest.fixture(scope="module")
def mimo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mimo(tmp_path_factory.mktemp("mimo") / "target")


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    words = [torch.randint(9, 60, (int(n),), generator=generator).tolist() for n in (3, 6, 10, 15)]
    short = [[*row, START] for row in words]
    # a part of the thinking is in the prompt; 17 and 33 leave one token to the last chunk of 16
    begun = [
        [*row, START, *torch.randint(20, 60, (n - len(row) - 1,), generator=generator).tolist()]
        for row, n in zip(words, (17, 33, 20, 19), strict=True)
    ]
    return short + begun


@pytest.fixture(scope="module")
def run(
    engine: Callable[..., Any], mimo: Path, prompts: list[list[int]]
) -> tuple[list[list[int]], list[Any], dict[str, Any]]:
    """Stock outputs, outputs with exits after 0, 5, 10 ... tokens, and all raw signals."""
    inputs = [{"prompt_token_ids": p} for p in prompts]

    def params(after: int | None = None) -> SamplingParams:
        policy: Any = "off" if after is None else {**LOOSE, "min_think_tokens": after}
        return SamplingParams(
            max_tokens=LENGTH, temperature=0, ignore_eos=True, extra_args={"specexit": policy}
        )

    llm = engine(
        str(mimo),
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
        worker_cls="tests.engine.oracle.OracleWorker",
        scheduler_cls="inference.vllm.SpecExitScheduler",
        additional_config={"specexit": {"record": True}},
        max_num_batched_tokens=16,
        enable_prefix_caching=False,
    )
    base = llm.generate(inputs, params())
    oracle.learn(base)
    got = llm.generate(inputs, [params(5 * i) for i in range(len(inputs))])
    llm.generate(inputs[:1], params())  # finished requests leave with the next step
    return (
        [list(o.outputs[0].token_ids) for o in base],
        got,
        llm.collective_rpc("specexit_take_records")[0],
    )


def signals(mimo: Path, ids: list[int]) -> Tensor:
    """`[T, 3]` raw signals of every token, by transformers and the head in plain torch."""
    head, _ = load_signal_head(mimo)
    with torch.no_grad():
        return activate(head.project(features(mimo, ids)))


def boundary(prompt: list[int], output: list[int], after: int) -> int | None:
    """Index of the first generated boundary with at least so many thinking tokens up to it."""
    held = len(prompt) - prompt.index(START) - 1
    for i in boundaries(prompt, output[:-1]):
        if END in output[: i + 2]:
            return None
        if held + i + 1 >= after:
            return i
    return None


def test_exit_keeps_tokens_up_to_the_boundary(
    run: tuple[list[list[int]], list[Any], Any], prompts: list[list[int]]
) -> None:
    exits = 0
    for i, (base, output) in enumerate(zip(run[0], run[1], strict=True)):
        got = list(output.outputs[0].token_ids)
        at = boundary(prompts[i], base, 5 * i)
        if at is None:
            assert got == base
            continue
        assert got[: at + 2] == [*base[: at + 1], END]
        assert output.kv_transfer_params["specexit"]["injected"] == [at + 1]
        exits += 1
    assert exits >= 4


def test_tail_equals_a_fresh_run(
    run: tuple[list[list[int]], list[Any], Any],
    engine: Callable[..., Any],
    mimo: Path,
    prompts: list[list[int]],
) -> None:
    fresh = engine(str(mimo), enable_prefix_caching=False)
    inputs, tails = [], []
    for prompt, output in zip(prompts, run[1], strict=True):
        got = list(output.outputs[0].token_ids)
        for at in output.kv_transfer_params["specexit"]["injected"]:
            inputs.append({"prompt_token_ids": prompt + got[: at + 1]})
            tails.append(got[at + 1 :])
    assert inputs
    params = [SamplingParams(max_tokens=len(t), temperature=0, ignore_eos=True) for t in tails]
    again = fresh.generate(inputs, params)
    assert [list(o.outputs[0].token_ids) for o in again] == tails


def test_raw_signals_of_every_generated_token_equal_transformers(
    run: tuple[list[list[int]], list[Any], dict[str, Any]], mimo: Path, prompts: list[list[int]]
) -> None:
    checked = 0
    for prompt, output in zip(prompts, run[1], strict=True):
        found = [r for i, r in run[2].items() if i.startswith(f"{output.request_id}-")]
        found += [r for i, r in run[2].items() if i == output.request_id]
        raw = torch.tensor(found[0]["signals"])
        ids = prompt + list(output.outputs[0].token_ids)
        expected = signals(mimo, ids)
        first = len(prompt) if prompt[-1] == START else len(prompt) - 1
        torch.testing.assert_close(
            raw, expected[first : first + len(raw)], rtol=TOLERANCE, atol=TOLERANCE
        )
        checked += len(raw)
    assert checked > 100


def test_smoothed_signals_take_in_the_thinking_of_the_prompt(
    run: tuple[list[list[int]], list[Any], Any], mimo: Path, prompts: list[list[int]]
) -> None:
    checked = 0
    for prompt, output in zip(prompts, run[1], strict=True):
        record = output.kv_transfer_params["specexit"]
        if record["exit"] != "injected":
            continue
        begin = prompt.index(START) + 1
        end = len(prompt) + record["position"]  # of the think end
        raw = signals(mimo, (prompt + list(output.outputs[0].token_ids))[:end])[begin:]
        smoothed = raw[0]
        for s in raw[1:]:
            smoothed = 0.1 * s + 0.9 * smoothed
        got = torch.tensor([record["signals"][n] for n in ("confidence", "progress", "remain")])
        torch.testing.assert_close(got, smoothed, rtol=TOLERANCE, atol=TOLERANCE)
        assert record["think_tokens"] == len(raw)
        checked += begin < len(prompt)
    assert checked >= 2
