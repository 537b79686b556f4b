"""Requests that share an engine: preemption, swaps, samples, recording. No state leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine import oracle
from tests.engine.chaos import END, START
from tests.engine.exits import NEVER, ORACLE, always, draft, ids, params


def test_preemption_chunks_and_cached_prefixes_change_no_exit(
    main: Callable[[], Any], engine: Callable[..., Any], chaos: Path
) -> None:
    """Per-request state survives; a resumed request equals an uninterrupted one.

    https://github.com/vllm-project/vllm/issues/29045 (chunked prefill and preemption)
    https://github.com/vllm-project/vllm/issues/44485 (fewer hidden states than tokens)
    """
    generator = torch.Generator().manual_seed(9)
    common = torch.randint(9, 60, (70,), generator=generator).tolist()
    prompts = [
        {
            "prompt_token_ids": [
                *common,
                *torch.randint(9, 60, (5,), generator=generator).tolist(),
                START,
            ]
        }
        for _ in range(7)
    ]
    small = engine(
        str(chaos / "target"),
        **draft(chaos, "memory", 3),
        **ORACLE,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_gpu_blocks_override=18,
        max_model_len=320,
    )
    scheduler = small.llm_engine.engine_core.engine_core.scheduler
    preempted: list[str] = []
    inner = scheduler._preempt_request

    def watch(request: Any, *args: Any, **kwargs: Any) -> Any:
        preempted.append(request.request_id)
        return inner(request, *args, **kwargs)

    scheduler._preempt_request = watch
    policies = [always(20), always(60), NEVER, always(5, patience=2), always(100), "off", always(0)]
    wanted = main().generate(prompts, [params(p, 180) for p in policies])
    oracle.learn(wanted)
    for order in (slice(None), slice(None, None, -1)):
        got = small.generate(prompts[order], [params(p, 180) for p in policies[order]])
        assert ids(got) == ids(wanted)[order]
        for g, w in zip(got, wanted[order], strict=True):
            if "specexit" in (w.kv_transfer_params or {}):
                a, b = g.kv_transfer_params["specexit"], w.kv_transfer_params["specexit"]
                assert a["injected"] == b["injected"]
                assert a.get("signals") == pytest.approx(b.get("signals"), abs=1e-4)
    assert len(preempted) >= 2
    for llm in (small, main()):
        llm.generate(prompts[:1], params("off", 2))  # finished requests leave with the next step
        stats = llm.collective_rpc("specexit_stats")[0]
        assert stats["slots_used"] <= 1
        assert stats["snapshots"] == 0


def test_every_think_end_is_natural_or_recorded_for_its_own_request(
    main: Callable[[], Any], prompts: list[Any], stock: list[list[int]]
) -> None:
    """Rows swap, requests come and go; nobody gets another's think end.

    https://github.com/vllm-project/vllm/pull/51890 (state of two requests mixed by a row swap)
    https://github.com/vllm-project/vllm/pull/5329 (state shared by the samples of one request)
    """
    policies = [always(0), "off", always(12), NEVER, always(33), always(7, patience=3)]
    many = [prompts[i % len(prompts)] for i in range(36)]
    greedy = main().generate(
        many, [params(policies[i % 6], 20 + 11 * (i % 7)) for i in range(len(many))]
    )
    for i, output in enumerate(greedy):
        got, base = list(output.outputs[0].token_ids), stock[i % len(prompts)]
        record = (output.kv_transfer_params or {}).get("specexit")
        injected = record["injected"] if record else []
        if policies[i % 6] in ("off", NEVER):
            assert injected == []
        first = injected[0] if injected else len(got)
        assert got[:first] == base[:first]
        assert [p for p in injected if got[p] != END] == []
    random = main().generate(
        many,
        [params(policies[i % 6], 20 + 11 * (i % 7), temperature=1, n=1 + i % 3) for i in range(36)],
    )
    ended = {"injected": 0, "natural": 0}
    for i, output in enumerate(random):
        record = (output.kv_transfer_params or {}).get("specexit")
        if policies[i % 6] in ("off", NEVER):
            assert record is None or record["injected"] == []
        if len(output.outputs) == 1 and record:
            ended[record["exit"]] = ended.get(record["exit"], 0) + 1
            at = [p for p, t in enumerate(output.outputs[0].token_ids) if t == END]
            assert at[:1] == ([] if record["exit"] == "none" else [record["position"]])
    assert ended["injected"] >= 3


def test_sampled_and_greedy_requests_share_a_batch_on_a_cpu(
    main: Callable[[], Any], prompts: list[Any], stock: list[list[int]]
) -> None:
    """vLLM's CPU kernel loses the temperatures of such a batch; the worker mends it.

    At temperature 0.01 the logits leave no choice but where two are as good as equal, so sampling
    begins with the greedy tokens, and every greedy request has all of its own.
    """
    temperatures = [0.0, 0.01, 0.0, 0.01]
    many = [prompts[i % len(prompts)] for i in range(24)]
    got = main().generate(
        many, [params("off", temperature=temperatures[i % 4]) for i in range(len(many))]
    )
    ids_of = ids(got)
    for i, output in enumerate(ids_of[0::2]):
        assert output == stock[2 * i % len(prompts)]
    begun = [o[:8] == stock[(2 * i + 1) % len(prompts)][:8] for i, o in enumerate(ids_of[1::2])]
    assert sum(begun) >= 9  # of 12; none where the temperatures are lost


def test_recording_keeps_the_raw_signals_of_every_thinking_token(
    engine: Callable[..., Any], chaos: Path, prompts: list[Any], stock: list[list[int]]
) -> None:
    llm = engine(
        str(chaos / "target"),
        **draft(chaos, "memory", 3),
        **ORACLE,
        additional_config={"specexit": {"record": True, **NEVER}},
    )
    outputs = llm.generate(prompts[:4], params())
    llm.generate(prompts[:1], params("off", 1))
    taken = llm.collective_rpc("specexit_take_records")[0]
    assert len(taken) == 4
    for output, base in zip(outputs, stock, strict=False):
        (name,) = [r for r in taken if r.rsplit("-", 1)[0] == output.request_id]
        count = len(taken[name]["signals"])
        if END in base:
            assert count == base.index(END)
        else:  # the last token is no input yet, unless its step accepted more than was left to say
            assert len(base) - 1 <= count <= len(base) + 2
    assert llm.collective_rpc("specexit_take_records")[0] == {}
