"""The exit in a real vLLM engine (V1, CPU, fp32, greedy): exact, invisible, without leaks.

The target is random, so any wrong row, state or KV entry shows in the next tokens. Each public
fault is named by its link; what it asks here is stated in the test's name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specexit.engine_env import prepare_in_process_engine

prepare_in_process_engine()

from vllm import SamplingParams  # noqa: E402
from vllm.exceptions import VLLMValidationError  # noqa: E402

from tests.engine import oracle  # noqa: E402
from tests.engine.chaos import (  # noqa: E402
    AUX,
    BLANK,
    END,
    NEWLINE,
    SPACE,
    SPLIT,
    START,
    ends_paragraph,
    make_head,
)

ORACLE = {
    "worker_cls": "tests.engine.oracle.OracleWorker",
    "scheduler_cls": "inference.vllm.SpecExitScheduler",
}
LENGTH = 90
NEVER = {"thresholds": {"confidence": 1.0}}


def always(after: int = 0, **more: Any) -> dict[str, Any]:
    """A policy that ends the thinking at the first boundary after so many tokens."""
    loose = {"signals": ["remain"], "thresholds": {"remain": 1e9}, "min_think_tokens": after}
    return {**loose, **more}


def params(policy: Any = None, length: int = LENGTH, **more: Any) -> SamplingParams:
    extra = {"specexit": policy} if policy is not None else None
    more = {"temperature": 0, "ignore_eos": True, **more}
    return SamplingParams(max_tokens=length, extra_args=extra, **more)


def draft(chaos: Path, kind: str, K: int) -> dict[str, Any]:
    return {
        "speculative_config": {
            "method": "eagle3",
            "model": str(chaos / kind),
            "num_speculative_tokens": K,
        }
    }


def ids(outputs: list[Any]) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in outputs]


def records(outputs: list[Any]) -> list[dict[str, Any]]:
    return [o.kv_transfer_params["specexit"] for o in outputs]


@pytest.fixture(scope="module")
def prompts() -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    rows = [torch.randint(9, 60, (int(n),), generator=generator).tolist() for n in range(3, 27, 2)]
    return [{"prompt_token_ids": [*row, START]} for row in rows]


@pytest.fixture(scope="module")
def stock(engine: Callable[..., Any], chaos: Path, prompts: list[Any]) -> list[list[int]]:
    """Greedy outputs of the target alone, without drafts and without SpecExit."""
    outputs = engine(str(chaos / "target")).generate(prompts, params())
    oracle.learn(outputs)
    return ids(outputs)


@pytest.fixture(scope="module")
def main(engine: Callable[..., Any], chaos: Path, stock: list[list[int]]) -> Callable[[], Any]:
    """The engine of most tests: memory head, three drafts, true ones three times in four."""
    return lambda: engine(str(chaos / "target"), **draft(chaos, "memory", 3), **ORACLE)


def first_split(output: list[int], after: int) -> int | None:
    """Index of the first boundary token with at least so many thinking tokens up to it."""
    for i, token in enumerate(output):
        if token == END:
            return None
        if ends_paragraph(output, i) and i + 1 >= after:
            return i
    return None


def check_exits(got: list[list[int]], stock: list[list[int]], after: int) -> int:
    """Every output is stock's up to the boundary, then the think end; returns how many exited."""
    exits = 0
    for output, base in zip(got, stock, strict=True):
        at = first_split(base, after)
        if at is None or at + 1 >= len(base):
            assert output == base
            continue
        assert output[: at + 1] == base[: at + 1]
        assert output[at + 1] == END
        exits += 1
    return exits


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


def test_logprob_and_rank_of_the_forced_token_are_the_targets(
    main: Callable[[], Any], chaos: Path, prompts: list[Any]
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(chaos / "target"), dtype=torch.float32)
    outputs = main().generate(prompts, params(always(5), logprobs=2))
    checked = 0
    for output, record in zip(outputs, records(outputs), strict=True):
        completion = output.outputs[0]
        assert len(completion.logprobs) == len(completion.token_ids)
        if not record["injected"]:
            continue
        at = record["injected"][0]
        with torch.inference_mode():
            prefix = torch.tensor([[*output.prompt_token_ids, *completion.token_ids[:at]]])
            wanted = model(prefix).logits[0, -1].log_softmax(-1)
        entry = completion.logprobs[at][END]
        assert entry.logprob == pytest.approx(float(wanted[END]), abs=1e-3)
        assert entry.rank == int((wanted > wanted[END]).sum()) + 1
        checked += 1
    assert checked >= 4


@pytest.mark.parametrize("budget", [1, 2, 10])
def test_max_think_tokens_counts_exactly_with_drafts(
    main: Callable[[], Any], prompts: list[Any], stock: list[list[int]], budget: int
) -> None:
    """The cap holds with speculative decoding, to the token.

    https://github.com/vllm-project/vllm/issues/39573 (cap ignored with drafts)
    https://github.com/vllm-project/vllm/issues/54906 (rule skipped whenever drafts exist)
    https://github.com/vllm-project/vllm/pull/20859 (count-down lets budget + 1 through)
    """
    hard = -(-budget * 11 // 10)
    outputs = main().generate(prompts, params({"signals": [], "max_think_tokens": budget}, 32))
    for output, base in zip(ids(outputs), stock, strict=True):
        at = next((i for i in range(hard) if ends_paragraph(base, i) and i + 1 >= budget), hard - 1)
        end = base.index(END) if END in base[: at + 1] else at + 1
        assert output.index(END) == end
        assert output[:end] == base[:end]


def test_exit_on_the_last_allowed_token(
    main: Callable[[], Any], prompts: list[Any], stock: list[list[int]]
) -> None:
    """https://github.com/sgl-project/sglang/issues/31599 (length cap and stop in one step)"""
    row, at = next((i, p) for i, s in enumerate(stock) if (p := first_split(s, 3)) is not None)
    for limit in (at, at + 1, at + 2, at + 3):
        (output,) = main().generate([prompts[row]], params(always(3), limit))
        got = list(output.outputs[0].token_ids)
        assert len(got) == limit
        assert output.outputs[0].finish_reason == "length"
        assert (END in got) == (limit >= at + 2)


def test_stop_strings_and_bad_words_compose(
    main: Callable[[], Any], prompts: list[Any], stock: list[list[int]]
) -> None:
    """https://github.com/vllm-project/vllm/pull/47616 (text cut at the stop, ids not)

    `bad_words` bans what the model samples; the think end is not sampled, so it stays.
    """
    row, at = next((i, p) for i, s in enumerate(stock) if (p := first_split(s, 3)) is not None)
    (o,) = main().generate([prompts[row]], params(always(3), stop=["</think>"], logprobs=1))
    assert o.outputs[0].finish_reason == "stop"
    assert o.outputs[0].stop_reason == "</think>"
    assert list(o.outputs[0].token_ids) == [*stock[row][: at + 1], END]
    assert len(o.outputs[0].logprobs) == at + 2
    (o,) = main().generate([prompts[row]], params(always(3), stop_token_ids=[END]))
    assert o.outputs[0].stop_reason == END
    (o,) = main().generate([prompts[row]], params(always(3), bad_words=["</think>"]))
    assert END in o.outputs[0].token_ids


def test_closed_think_block_in_the_prompt_is_no_thinking(
    main: Callable[[], Any], prompts: list[Any], stock: list[list[int]]
) -> None:
    """An old closed block is ignored; a new one that the prompt opens is followed.

    https://github.com/ggml-org/llama.cpp/pull/22323 (the old block marks the new one done)
    https://github.com/Blaizzy/mlx-vlm/issues/1911 (the template opens no thinking)
    """
    body = prompts[5]["prompt_token_ids"][:-1]
    old = [START, 12, 13, SPLIT, 14, END, *body]
    closed, opened, plain = main().generate(
        [
            {"prompt_token_ids": old},
            {"prompt_token_ids": [*old, START]},
            {"prompt_token_ids": body},
        ],
        params(always(0)),
    )
    for output in (closed, plain):
        if START not in output.outputs[0].token_ids:
            assert output.kv_transfer_params["specexit"]["exit"] == "none"
    got = list(opened.outputs[0].token_ids)
    if (at := first_split(got, 0)) is not None:
        assert got[at + 1] == END


def test_prompt_that_holds_a_part_of_the_thinking_equals_having_generated_it(
    main: Callable[[], Any], prompts: list[Any], stock: list[list[int]]
) -> None:
    """The head reads the prompt's rows; for cached ones the record says how many it missed."""
    # White space after the think start of a prompt belongs to the opening, a generated one counts.
    solid = [i for i, s in enumerate(stock) if s[0] not in (NEWLINE, SPACE, BLANK)]
    base = [i for i in solid if first_split(stock[i], 30) is not None]
    assert len(base) >= 3
    whole = main().generate([prompts[i] for i in base], params(always(30)))
    parts = []
    for i in base:
        prompt = prompts[i]["prompt_token_ids"]
        parts.append({"prompt_token_ids": [*prompt, *stock[i][:17]]})
    again = main().generate(parts, params(always(30), LENGTH - 17))
    for w, a in zip(records(whole), records(again), strict=True):
        assert a["position"] == w["position"] - 17
        assert a["think_tokens"] == w["think_tokens"]
        assert a["boundary"] == w["boundary"]
        if "prompt_missing" not in a:
            assert a["signals"] == pytest.approx(w["signals"], abs=1e-4)
    assert any("prompt_missing" not in a for a in records(again))


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


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("nope", "neither 'off', 'on' nor JSON"),
        ('{"patience": 0}', "patience"),
        ({"thresholds": {"confidence": 2}}, "specexit.thresholds.confidence: 2"),
    ],
)
def test_bad_request_is_refused_in_the_front_end(
    main: Callable[[], Any], prompts: list[Any], argument: Any, says: str
) -> None:
    with pytest.raises(VLLMValidationError, match=says):
        main().generate(prompts[:1], params(argument))
    assert main().generate(prompts[:1], params("off", 3))  # and the engine lives on


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
