"""Contracts end requests in a real vLLM engine: `LLM.generate`, drafts, n > 1, streaming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind

from inference.vllm.contract_stop import contract_of
from specexit import tiny
from specexit.committer import Committer

BOX = {"contract": "boxed_integer"}
MAX_TOKENS = 700
REST = 60  # characters of the thinking that `prompts` leave to the model


@pytest.fixture(scope="module")
def llm(engine: Any, tiny_path: Path) -> Any:
    """fp32, with n-gram drafts so that steps bring several tokens; the plug-in loads by itself."""
    drafts = {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 2,
    }
    return engine(str(tiny_path), max_model_len=1024, speculative_config=drafts)


@pytest.fixture(scope="module")
def whole(llm: Any) -> list[tuple[str, Any]]:
    """Questions as prompts, and their full outputs without a contract."""
    tokenizer = llm.get_tokenizer()
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": item["question"]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        for item in tiny.questions("heldout", 8, seed=3)
    ]
    outputs = generate(llm, prompts)
    assert sum("</think>" in o.text and "\\boxed{" in o.text for o in outputs) >= 6
    return list(zip(prompts, outputs, strict=True))


@pytest.fixture(scope="module")
def prompts(whole: list[tuple[str, Any]]) -> list[str]:
    """Prompts that end inside the thinking, shortly before its end: short outputs from here on."""
    return [
        prompt + output.text[: max(output.text.index("</think>") - REST, 0)]
        for prompt, output in whole
        if "</think>" in output.text
    ]


@pytest.fixture(scope="module")
def stock(llm: Any, prompts: list[str]) -> list[Any]:
    """The same engine's outputs for `prompts` without a contract."""
    outputs = generate(llm, prompts)
    assert sum("\\boxed{" in output.text for output in outputs) >= 6
    return outputs


def generate(llm: Any, prompts: list[str], **params: Any) -> list[Any]:
    """The first completion of each prompt, greedy unless told otherwise."""
    params = {"temperature": 0.0, "max_tokens": MAX_TOKENS, **params}
    results = llm.generate(prompts, SamplingParams(**params), use_tqdm=False)
    return [result.outputs[0] for result in results]


def test_the_text_is_cut_where_the_committer_says(
    llm: Any, prompts: list[str], stock: list[Any]
) -> None:
    for full, cut in zip(stock, generate(llm, prompts, extra_args=BOX), strict=True):
        # The independent reading: the whole stock text, tags as text.
        expected = Committer("boxed_integer", thinking=True).feed(full.text)
        if expected is None:
            assert cut.text == full.text
            assert cut.stop_reason is None
            continue
        assert cut.text == full.text[: expected.position]
        assert cut.finish_reason == "stop"
        assert cut.stop_reason == "contract:boxed_integer"


def test_whole_thinkings_end_where_the_committer_says(
    llm: Any, whole: list[tuple[str, Any]]
) -> None:
    outputs = generate(llm, [prompt for prompt, _ in whole], extra_args=BOX)
    for (_, full), cut in zip(whole, outputs, strict=True):
        expected = Committer("boxed_integer").feed(full.text)
        position = len(full.text) if expected is None else expected.position
        assert cut.text == full.text[:position]


def test_token_ids_are_the_stock_ids_up_to_the_deciding_token(
    llm: Any, prompts: list[str], stock: list[Any]
) -> None:
    decode = llm.get_tokenizer().decode
    for full, cut in zip(stock, generate(llm, prompts, extra_args=BOX), strict=True):
        n = len(cut.token_ids)
        assert list(cut.token_ids) == list(full.token_ids[:n])
        if cut.stop_reason is not None:
            assert n < len(full.token_ids)
            assert decode(cut.token_ids).startswith(cut.text)
            assert not decode(cut.token_ids[:-1]).startswith(cut.text)


def test_logprobs_are_trimmed_with_the_tokens(llm: Any, prompts: list[str]) -> None:
    """Text was cut at the stop, ids and logprobs were not: vllm-project/vllm#47616."""
    full = generate(llm, prompts[:4], logprobs=1)
    for whole, cut in zip(
        full, generate(llm, prompts[:4], logprobs=1, extra_args=BOX), strict=True
    ):
        assert len(cut.logprobs) == len(cut.token_ids)
        for token_id, row, same in zip(cut.token_ids, cut.logprobs, whole.logprobs, strict=False):
            assert row[token_id].logprob == pytest.approx(same[token_id].logprob, abs=1e-4)


def test_nothing_inside_the_thinking_ends_a_request(
    llm: Any, prompts: list[str], stock: list[Any]
) -> None:
    # Any token of the thinking as the answer: the same request commits once thinking is over.
    digit = {"contract": {"type": "regex", "pattern": "[0-9]"}}
    for full, cut in zip(stock, generate(llm, prompts, extra_args=digit), strict=True):
        thinking, answer = full.text.split("</think>")
        assert any(c.isdigit() for c in thinking)
        first = next(i for i, c in enumerate(answer) if c.isdigit())
        assert cut.text == thinking + "</think>" + answer[: first + 1]


def test_each_of_n_outputs_has_its_own_end(llm: Any, prompts: list[str]) -> None:
    """One params object for several outputs shared its state: vllm-project/vllm#5329."""
    params = SamplingParams(n=3, temperature=1.0, max_tokens=150, extra_args=BOX)
    results = llm.generate(prompts[:4], params, use_tqdm=False)
    outputs = [output for result in results for output in result.outputs]
    assert len(outputs) == 12
    for output in outputs:
        expected = Committer("boxed_integer", thinking=True).feed(output.text)
        assert (expected is not None) == (output.stop_reason == "contract:boxed_integer")
        if expected is not None:
            assert expected.position == len(output.text)


def test_a_contract_met_in_the_step_that_reaches_max_tokens_counts(
    llm: Any, prompts: list[str]
) -> None:
    """The length was checked first and junk stayed: sgl-project/sglang#31599."""
    outputs = generate(llm, prompts, extra_args=BOX)
    i, cut = next((i, o) for i, o in enumerate(outputs) if o.stop_reason is not None)
    n = len(cut.token_ids)
    for extra in (0, 1, 2):
        output = generate(llm, [prompts[i]], extra_args=BOX, max_tokens=n + extra)[0]
        assert (output.text, output.finish_reason) == (cut.text, "stop")
        assert list(output.token_ids) == list(cut.token_ids)
    output = generate(llm, [prompts[i]], extra_args=BOX, max_tokens=n - 1)[0]
    assert (output.finish_reason, output.stop_reason) == ("length", None)


def test_min_tokens_is_respected(llm: Any, prompts: list[str]) -> None:
    cut = generate(llm, prompts[:1], extra_args=BOX)[0]
    n = len(cut.token_ids) + 3
    output = generate(llm, prompts[:1], extra_args=BOX, min_tokens=n)[0]
    assert len(output.token_ids) == n
    assert output.stop_reason == "contract:boxed_integer"


def test_requests_with_and_without_contracts_share_a_batch(
    llm: Any, prompts: list[str], stock: list[Any]
) -> None:
    params = [
        SamplingParams(
            temperature=0.0, max_tokens=MAX_TOKENS, extra_args=dict(BOX) if i % 2 else None
        )
        for i in range(len(prompts))
    ]
    results = llm.generate(prompts, params, use_tqdm=False)
    for i, (result, full) in enumerate(zip(results, stock, strict=True)):
        text = result.outputs[0].text
        assert full.text.startswith(text) if i % 2 else text == full.text


def test_streamed_deltas_join_to_the_whole_output(
    llm: Any, prompts: list[str], stock: list[Any]
) -> None:
    engine = llm.llm_engine
    params = SamplingParams(
        temperature=0.0,
        max_tokens=MAX_TOKENS,
        extra_args=BOX,
        output_kind=RequestOutputKind.DELTA,
    )
    for i, prompt in enumerate(prompts[:4]):
        engine.add_request(f"stream-{i}", prompt, params)
    texts: dict[str, str] = {}
    ids: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for result in engine.step():
            name, delta = result.request_id, result.outputs[0]
            texts[name] = texts.get(name, "") + delta.text
            ids.setdefault(name, []).extend(delta.token_ids)
    whole = generate(llm, prompts[:4], extra_args=BOX)
    for i, output in enumerate(whole):
        assert texts[f"stream-{i}"] == output.text
        assert ids[f"stream-{i}"] == list(output.token_ids)


def test_the_engine_is_empty_afterwards(llm: Any, prompts: list[str]) -> None:
    generate(llm, prompts, extra_args=BOX)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    llm.llm_engine.step()  # the core sees the aborts
    assert not scheduler.running
    assert not scheduler.waiting
    assert scheduler.kv_cache_manager.usage == 0


@pytest.mark.parametrize(
    ("contract", "said"),
    [
        ("nope", "boxed_integer"),  # what is allowed
        ({"type": "boxed_integer", "max": -1}, "contract.max: -1"),
        ('{"type": "boxed_integer", "maxx": 1}', "contract.maxx"),
        ("{broken", "not valid JSON"),
        ("/some/file.yaml", "unknown"),  # a request reads no files
        (3, "int is not a name"),
        ("x" * 70_000, "70000 characters, at most"),
        ("x" * 60_000, "is unknown"),
    ],
)
def test_a_wrong_contract_is_refused_before_work_starts(
    llm: Any, prompts: list[str], contract: Any, said: str
) -> None:
    with pytest.raises(VLLMValidationError, match=r"vllm_xargs\.contract") as refused:
        generate(llm, prompts[:1], extra_args={"contract": contract})
    assert said in str(refused.value)
    assert len(str(refused.value)) < 1_000
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_contract_without_text_is_refused(llm: Any, prompts: list[str]) -> None:
    with pytest.raises(VLLMValidationError, match="detokenize=False"):
        generate(llm, prompts[:1], extra_args=BOX, detokenize=False)


def test_a_contract_object_is_refused_with_the_way_out() -> None:
    from specexit.contracts import ContractError, contract

    params = SamplingParams(extra_args={"contract": contract("boxed_integer")})
    with pytest.raises(ContractError, match=r"\.spec\(\)"):
        contract_of(params)
