"""The exit beside vLLM's own features: grammars, budgets, re-opened thinking, compilation."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from tests.engine import oracle
from tests.engine.chaos import END, START, ends_paragraph, make_head, make_target
from tests.engine.exits import (
    NEVER,
    ORACLE,
    always,
    check_exits,
    draft,
    ids,
    params,
    records,
)


def make_prompts(count: int, seed: int = 5) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(9, 60, (count, 7), generator=generator).tolist()
    return [{"prompt_token_ids": [*row, START]} for row in rows]


@pytest.fixture(scope="module")
def parsing(engine: Callable[..., Any], chaos: Path) -> Callable[[], Any]:
    """An engine that knows where the reasoning ends."""
    return lambda: engine(
        str(chaos / "target"), **draft(chaos, "memory", 3), **ORACLE, reasoning_parser="qwen3"
    )


def test_grammar_starts_after_the_injected_end(parsing: Callable[[], Any]) -> None:
    """https://github.com/vllm-project/vllm/pull/44297 (drafts after the end are unconstrained)

    https://github.com/vllm-project/vllm/issues/43388 (reasoning end missed with drafts)
    """
    llm, prompts = parsing(), make_prompts(6)
    oracle.learn(llm.generate(prompts, params(NEVER)))
    grammar = StructuredOutputsParams(regex=r"[0-9]{3}x[0-9]{2}")
    sampling = params(always(4), structured_outputs=grammar, ignore_eos=False)
    exits = 0
    for _ in range(2):
        outputs = llm.generate(prompts, sampling)
        oracle.learn(outputs)
    for output, record in zip(outputs, records(outputs), strict=True):
        if record["exit"] != "injected":
            continue
        at = record["injected"][0]
        answer = llm.get_tokenizer().decode(
            output.outputs[0].token_ids[at + 1 :], skip_special_tokens=True
        )
        assert re.fullmatch(r"[0-9]{3}x[0-9]{2}", answer)
        exits += 1
    assert exits >= 2


def test_thinking_token_budget_and_the_exit_write_one_think_end(
    parsing: Callable[[], Any],
) -> None:
    llm, prompts = parsing(), make_prompts(6)
    base = ids(llm.generate(prompts, params(NEVER)))
    fired = set()
    for budget, after in ((6, 40), (40, 6)):
        outputs = llm.generate(prompts, params(always(after), thinking_token_budget=budget))
        for output, record, plain in zip(ids(outputs), records(outputs), base, strict=True):
            if END in plain:
                continue
            first = output.index(END)
            assert output[:first] == plain[:first]
            assert first <= max(budget, after + 60)
            assert first <= budget or record["injected"] == [first]
            fired.add(record["exit"])
    assert fired == {"injected", "natural"}  # vLLM's own forced end counts as natural here


@pytest.fixture(scope="module")
def reopening(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target that opens and closes its thinking often."""
    folder = tmp_path_factory.mktemp("reopening")
    make_target(folder / "target", seed=4, end_scale=1.3, start_scale=1.3)
    make_head(folder / "memory", folder / "target", "memory")
    return folder


@pytest.mark.parametrize("reenter", [False, True])
def test_reopened_thinking_is_followed_as_the_policy_says(
    engine: Callable[..., Any], reopening: Path, reenter: bool
) -> None:
    """The model opens its own thinking, closes it, and opens it again right after a forced end.

    https://github.com/vllm-project/vllm/pull/43757 (never stopped again after a forced close)
    https://github.com/Blaizzy/mlx-vlm/issues/1911 (the model's own think start ignored)
    """
    llm = engine(str(reopening / "target"), **draft(reopening, "memory", 3), **ORACLE)
    prompts = [
        *make_prompts(6),
        *({"prompt_token_ids": p["prompt_token_ids"][:-1]} for p in make_prompts(6, 8)),
    ]
    oracle.learn(llm.generate(prompts, params(NEVER)))
    for _ in range(2):
        outputs = llm.generate(prompts, params(always(0, reenter=reenter)))
        oracle.learn(outputs)
    exits = opened = 0
    for output, record in zip(outputs, records(outputs), strict=True):
        thinking, closed = output.prompt_token_ids[-1] == START, False
        wanted = []
        got = list(output.outputs[0].token_ids)
        for i, token in enumerate(got):
            if thinking and token == END:
                thinking = False
            elif thinking and i + 1 < len(got) and ends_paragraph(got, i):
                assert got[i + 1] == END
                thinking = False
                if i + 1 in record["injected"]:  # else the model wrote it by itself
                    closed = True
                    wanted.append(i + 1)
            elif token == START and not thinking and (reenter or not closed):
                thinking = True
                opened += 1
        assert record["injected"] == wanted
        exits += len(wanted)
    assert exits >= 3
    assert opened >= 2


def test_aborted_requests_leave_nothing_behind(engine: Callable[..., Any], chaos: Path) -> None:
    llm = engine(str(chaos / "target"), **draft(chaos, "memory", 3), **ORACLE)
    core = llm.llm_engine
    for i, prompt in enumerate(make_prompts(12)):
        core.add_request(f"abort-{i}", prompt, params(always(i)))
    finished = []
    for turn in range(400):
        finished += [o.request_id for o in core.step() if o.finished]
        if turn == 4:
            core.abort_request([f"abort-{i}" for i in range(0, 12, 2)])
        if not core.has_unfinished_requests():
            break
    assert {f"abort-{i}" for i in range(1, 12, 2)} <= set(finished)
    llm.generate(make_prompts(1), SamplingParams(max_tokens=1, extra_args={"specexit": "off"}))
    stats = llm.collective_rpc("specexit_stats")[0]
    assert stats["slots_used"] <= 1
    assert stats["requests_known"] <= 1
    assert stats["snapshots"] == 0
    assert not core.engine_core.engine_core.scheduler.requests


def exact(llm: Any, base: list[list[int]], prompts: list[Any]) -> None:
    """Never-exit says what stock says, and exits fall after the first boundary."""
    oracle_known = llm.generate(prompts, params(NEVER))
    assert ids(oracle_known) == base
    oracle.learn(oracle_known)
    exits = 0
    for after in (0, 20):
        outputs = llm.generate(prompts, params(always(after)))
        exits += check_exits(ids(outputs), base, after)
        for output, record in zip(ids(outputs), records(outputs), strict=True):
            assert all(output[p] == END for p in record["injected"])
    assert exits >= 4


def test_async_scheduling_changes_nothing(
    engine: Callable[..., Any], chaos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM switches it off on CPUs; here it is forced, as on GPUs, where it is the default."""
    from vllm.platforms import current_platform

    prompts = make_prompts(8)
    base = ids(engine(str(chaos / "target")).generate(prompts, params()))
    platform = type(current_platform)
    inner = platform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def force(cls: Any, vllm_config: Any) -> None:
        inner(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    monkeypatch.setattr(platform, "check_and_update_config", classmethod(force))
    for step in ("auto", "tensors"):
        llm = engine(
            str(chaos / "target"),
            **draft(chaos, "memory", 3),
            worker_cls="inference.vllm.SpecExitWorker",
            scheduler_cls="inference.vllm.SpecExitScheduler",
            additional_config={"specexit": {"step": step}},
        )
        assert llm.llm_engine.vllm_config.scheduler_config.async_scheduling
        exact(llm, base, prompts)


def test_compiled_model_changes_nothing(engine: Callable[..., Any], chaos: Path) -> None:
    prompts = make_prompts(8)
    compiled = engine(
        str(chaos / "target"), **draft(chaos, "memory", 3), **ORACLE, enforce_eager=False
    )
    base = ids(compiled.generate(prompts, params("off")))
    oracle.learn(compiled.generate(prompts, params("off")))
    exact(compiled, base, prompts)
