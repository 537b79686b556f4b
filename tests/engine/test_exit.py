"""The exit in a real vLLM engine (V1, CPU, fp32, greedy): exact and invisible.

The target is random, so any wrong row, state or KV entry shows in the next tokens. Each public
fault is named by its link; what it asks here is stated in the test's name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine import oracle
from tests.engine.chaos import AUX, END, NEWLINE, START, ends_paragraph, make_head
from tests.engine.exits import NEVER, ORACLE, always, check_exits, draft, ids, params, records


def test_never_exit_equals_stock_with_logprobs(
    main: Callable[[], Any],
    engine: Callable[..., Any],
    chaos: Path,
    prompts: list[Any],
    stock: list[list[int]],
) -> None:
    wanted = engine(str(chaos / "target")).generate(prompts, params(logprobs=2))
    got = main().generate(
        prompts,
        [params([NEVER, "off", None][i % 3] or NEVER, logprobs=2) for i in range(len(prompts))],
    )
    assert ids(got) == stock
    for g, w in zip(got, wanted, strict=True):
        for a, b in zip(g.outputs[0].logprobs, w.outputs[0].logprobs, strict=True):
            assert a.keys() == b.keys()
            for token in a:
                assert a[token].logprob == pytest.approx(b[token].logprob, abs=2e-4)


def test_a_thousand_greedy_requests_equal_stock_token_for_token(
    engine: Callable[..., Any], chaos: Path
) -> None:
    generator = torch.Generator().manual_seed(6)

    def upto(n: int) -> int:
        return int(torch.randint(1, n, (1,), generator=generator))

    asked: list[Any] = []
    for _ in range(1000):
        row = torch.randint(9, 60, (upto(40),), generator=generator).tolist()
        asked.append({"prompt_token_ids": [*row, START][: upto(60)]})  # some do not think
    lengths = [upto(24) for _ in asked]
    policies = [NEVER, "off", {**NEVER, "patience": 2}]
    plain = engine(str(chaos / "target"), max_num_seqs=64)
    wanted = plain.generate(asked, [params(length=n) for n in lengths])
    ours = engine(str(chaos / "target"), max_num_seqs=64, **draft(chaos, "memory", 3), **ORACLE)
    got = ours.generate(asked, [params(policies[i % 3], n) for i, n in enumerate(lengths)])
    assert ids(got) == ids(wanted)


@pytest.mark.parametrize(
    ("kind", "K", "step"),
    [("memory", 3, "auto"), ("memory", 1, "auto"), ("linear", 5, "auto"), ("mlp", 2, "tensors")],
)
def test_exit_is_exact_whatever_head_drafts_and_path(
    engine: Callable[..., Any],
    chaos: Path,
    prompts: list[Any],
    stock: list[list[int]],
    kind: str,
    K: int,
    step: str,
) -> None:
    more = {} if step == "auto" else {"additional_config": {"specexit": {"step": step}}}
    llm = engine(str(chaos / "target"), **draft(chaos, kind, K), **ORACLE, **more)
    exits = 0
    for after in (0, 9, 30):
        outputs = llm.generate(prompts, params(always(after)))
        exits += check_exits(ids(outputs), stock, after)
        for output, record in zip(ids(outputs), records(outputs), strict=True):
            injected = record["injected"]
            assert len(injected) <= 1
            assert all(output[p] == END and ends_paragraph(output, p - 1) for p in injected)
    assert exits >= 10


def test_tail_after_an_exit_equals_a_fresh_run_on_that_prefix(
    main: Callable[[], Any], engine: Callable[..., Any], chaos: Path, prompts: list[Any]
) -> None:
    """Also KV and draft state after the forced tag.

    https://github.com/panbanda/higgs/pull/75 (a forced tag that reached the output only)
    """
    for _ in range(2):  # the second time the oracle knows the tails, so runs are accepted there
        outputs = main().generate(prompts, params(always(5)))
        oracle.learn(outputs)
    cut = [
        (o, r["injected"][0] + 1)
        for o, r in zip(outputs, records(outputs), strict=True)
        if r["injected"]
    ]
    assert len(cut) >= 4
    again = [
        {"prompt_token_ids": [*o.prompt_token_ids, *o.outputs[0].token_ids[:at]]} for o, at in cut
    ]
    fresh = engine(str(chaos / "target")).generate(again, params())
    for (o, at), f in zip(cut, fresh, strict=True):
        tail = list(o.outputs[0].token_ids[at:])
        assert tail == list(f.outputs[0].token_ids[: len(tail)])


def test_signals_equal_an_independent_transformers_computation(
    main: Callable[[], Any], chaos: Path, prompts: list[Any]
) -> None:
    from transformers import AutoModelForCausalLM

    from specexit.checkpoint import load_signal_head
    from specexit.heads.signal import activate

    model = AutoModelForCausalLM.from_pretrained(str(chaos / "target"), dtype=torch.float32)
    head, _ = load_signal_head(chaos / "memory")
    outputs = main().generate(prompts, params(always(9)))
    checked = 0
    for output, record in zip(outputs, records(outputs), strict=True):
        if record["exit"] != "injected":
            continue
        prompt = output.prompt_token_ids
        thinking = list(output.outputs[0].token_ids[: record["position"]])
        with torch.inference_mode():
            states = model(torch.tensor([[*prompt, *thinking]]), output_hidden_states=True)
            f = torch.cat([states.hidden_states[i] for i in AUX], -1)[0, len(prompt) :]
            splits = torch.tensor([[ends_paragraph(thinking, i) for i in range(len(thinking))]])
            signals = activate(head(head.project(f)[None], splits))[0]
        smoothed = signals[0]
        for s in signals[1:]:
            smoothed = 0.1 * s + 0.9 * smoothed
        wanted = dict(zip(("confidence", "progress", "remain"), smoothed.tolist(), strict=True))
        assert record["signals"] == pytest.approx(wanted, abs=1e-4)
        assert record["think_tokens"] == len(thinking)
        assert record["boundary"] == int(splits.sum())
        checked += 1
    assert checked >= 4


def test_multi_token_think_end_and_suffix_are_written_whole(
    engine: Callable[..., Any],
    chaos: Path,
    prompts: list[Any],
    stock: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """https://github.com/kekzl/imp/pull/800 (half of a closing sequence forced)"""
    folder = tmp_path_factory.mktemp("heads") / "multi"
    make_head(folder, chaos / "target", "linear", think_end_ids=(END, NEWLINE, NEWLINE))
    llm = engine(
        str(chaos / "target"),
        speculative_config={"method": "eagle3", "model": str(folder), "num_speculative_tokens": 2},
        **ORACLE,
    )
    outputs = llm.generate(prompts, params(always(4, exit_suffix="ok:")))
    suffix = llm.get_tokenizer().encode("ok:")
    forced = [END, NEWLINE, NEWLINE, *suffix]
    exits = 0
    for output, base, record in zip(ids(outputs), stock, records(outputs), strict=True):
        if record["injected"]:
            at = record["injected"][0]
            assert output[:at] == base[:at]
            assert output[at : at + len(forced)] == forced[: len(output) - at]
            exits += 1
    assert exits >= 4
