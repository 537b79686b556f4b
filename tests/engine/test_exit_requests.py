"""What one request may ask for: budgets, logprobs, stop strings, odd prompts, bad arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from tests.engine.chaos import BLANK, END, NEWLINE, SPACE, SPLIT, START, ends_paragraph
from tests.engine.exits import LENGTH, always, first_split, ids, params, records


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


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("nope", "neither 'off', 'on' nor JSON"),
        ('{"patience": 0}', "patience"),
        ({"thresholds": {"confidence": 2}}, "specexit.thresholds.confidence: 2"),
        ({"min_think_tokens": 3_000_000_000}, "specexit.min_think_tokens: 3000000000"),
        ({"exit_suffix": "a" * 300}, "specexit.exit_suffix"),
        ("[" * 100_000, "neither 'off', 'on' nor JSON"),
    ],
)
def test_bad_request_is_refused_in_the_front_end(
    main: Callable[[], Any], prompts: list[Any], argument: Any, says: str
) -> None:
    with pytest.raises(VLLMValidationError, match=says):
        main().generate(prompts[:1], params(argument))
    assert main().generate(prompts[:1], params("off", 3))  # and the engine lives on


def test_a_server_without_specexit_knows_only_off(
    engine: Callable[..., Any], chaos: Path, prompts: list[Any]
) -> None:
    plain = engine(str(chaos / "target"))
    for _ in range(2):  # the second time after an `off` was let through
        with pytest.raises(VLLMValidationError, match="runs without SpecExit"):
            plain.generate(prompts[:1], params({"patience": 2}, 3))
        assert plain.generate(prompts[:1], params("off", 3))


def test_nothing_is_put_where_a_grammar_holds_while_the_model_thinks(
    main: Callable[[], Any], prompts: list[Any]
) -> None:
    """Without a reasoning parser the grammar constrains the thinking too."""
    grammar = StructuredOutputsParams(regex=r"[0-9]{3}x[0-9]{2}")
    wanted = main().generate(
        prompts, params("off", 20, structured_outputs=grammar, ignore_eos=False)
    )
    got = main().generate(
        prompts,
        params(
            {"signals": [], "max_think_tokens": 2}, 20, structured_outputs=grammar, ignore_eos=False
        ),
    )
    assert ids(got) == ids(wanted)
    assert all(o.outputs[0].finish_reason == "stop" for o in got)
    with pytest.raises(VLLMValidationError, match="exit_suffix"):
        main().generate(
            prompts[:1], params(always(0, exit_suffix="ok"), 20, structured_outputs=grammar)
        )
