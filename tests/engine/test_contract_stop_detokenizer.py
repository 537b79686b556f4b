"""The contract stop inside vLLM's detokenizers, without an engine: any step size, one result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.tokenizers import get_tokenizer
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine import detokenizer as vllm_detokenizer

from inference.vllm import contract_stop

OUTPUT = "Step 1: \\boxed{7}?\n\n</think>\n\nThe answer is \\boxed{42}. I am sure, \\boxed{43}."
KEPT = "Step 1: \\boxed{7}?\n\n</think>\n\nThe answer is \\boxed{42}"


@pytest.fixture(scope="module")
def tokenizer(tiny_path: Path) -> Any:
    contract_stop.install()
    return get_tokenizer(str(tiny_path))


@pytest.fixture(params=["fast", "slow"])
def kind(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both detokenizers; vLLM takes the slow one for tokenizers without a Rust backend."""
    if request.param == "slow":
        monkeypatch.setattr(vllm_detokenizer, "uses_fast_detokenizer", lambda _: False)
    return request.param


def make(tokenizer: Any, prompt: str = "Q <think>", **params: Any) -> Any:
    extra = params.pop("contract", "boxed_integer")
    sampling = SamplingParams(extra_args={"contract": extra} if extra else None, **params)
    request = EngineCoreRequest(
        request_id="0",
        prompt_token_ids=tokenizer.encode(prompt, add_special_tokens=False),
        mm_features=None,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    return vllm_detokenizer.IncrementalDetokenizer.from_new_request(tokenizer, request)


def feed(detokenizer: Any, ids: list[int], sizes: list[int]) -> str | None:
    """Give `ids` in steps of the sizes; the stop reason, None without one."""
    at = 0
    for size in [*sizes, len(ids)]:
        reason = detokenizer.update(ids[at : at + size], False)
        at += size
        if reason is not None or at >= len(ids):
            return reason
    return None


def test_requests_without_a_contract_get_the_stock_detokenizer(tokenizer: Any) -> None:
    stock = make(tokenizer, contract=None)
    assert type(stock) is vllm_detokenizer.FastIncrementalDetokenizer


def test_the_text_ends_where_the_answer_ends(tokenizer: Any, kind: str) -> None:
    detokenizer = make(tokenizer)
    ids = tokenizer.encode(OUTPUT, add_special_tokens=False)
    assert feed(detokenizer, ids, [1] * len(ids)) == "contract:boxed_integer"
    assert detokenizer.output_text == KEPT
    assert kind in type(detokenizer).__name__.lower()


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(sizes=st.lists(st.integers(1, 9), max_size=80))
def test_any_number_of_tokens_a_step_gives_the_same_result(
    tokenizer: Any, kind: str, sizes: list[int]
) -> None:
    """Tokens past the stop are dropped from ids as from text: vllm-project/vllm#47616."""
    ids = tokenizer.encode(OUTPUT, add_special_tokens=False)
    single, stepped = make(tokenizer), make(tokenizer)
    reason = feed(single, ids, [1] * len(ids))
    assert feed(stepped, ids, sizes) == reason == "contract:boxed_integer"
    assert stepped.output_text == single.output_text == KEPT
    assert stepped.output_token_ids == single.output_token_ids
    assert ids[: len(single.output_token_ids)] == single.output_token_ids


def test_the_deciding_token_is_the_last_one_kept(tokenizer: Any, kind: str) -> None:
    detokenizer = make(tokenizer)
    ids = tokenizer.encode(OUTPUT, add_special_tokens=False)
    feed(detokenizer, ids, [])
    kept = detokenizer.output_token_ids
    assert tokenizer.decode(kept).startswith(KEPT)
    assert not tokenizer.decode(kept[:-1]).startswith(KEPT)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_an_early_answer_waits_for_min_tokens(tokenizer: Any, kind: str, size: int) -> None:
    ids = tokenizer.encode(OUTPUT, add_special_tokens=False)
    detokenizer = make(tokenizer, min_tokens=len(ids) - 3, max_tokens=len(ids))
    assert feed(detokenizer, ids, [size] * len(ids)) == "contract:boxed_integer"
    assert detokenizer.output_token_ids == ids[: len(ids) - 3]
    assert detokenizer.output_text == tokenizer.decode(ids[: len(ids) - 3])


@pytest.mark.parametrize(
    ("stop", "reason", "text"),
    [
        ("answer", "answer", KEPT[: KEPT.index("answer")]),
        ("I am sure", "contract:boxed_integer", KEPT),
        ("42}", "42}", KEPT[: KEPT.index("42}")]),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_what_comes_first_of_stop_string_and_contract_wins(
    tokenizer: Any, kind: str, stop: str, reason: str, text: str, size: int
) -> None:
    ids = tokenizer.encode(OUTPUT, add_special_tokens=False)
    detokenizer = make(tokenizer, stop=[stop])
    assert feed(detokenizer, ids, [size] * len(ids)) == reason
    assert detokenizer.output_text == text


def test_streamed_deltas_join_to_the_cut_text_and_nothing_is_held_back(
    tokenizer: Any, kind: str
) -> None:
    """A long stop string held everything back: vllm-project/vllm#11089."""
    ids = tokenizer.encode(OUTPUT, add_special_tokens=False)
    detokenizer = make(tokenizer, output_kind=RequestOutputKind.DELTA)
    streamed = ""
    for token_id in ids:
        reason = detokenizer.update([token_id], False)
        streamed += detokenizer.get_next_output_text(reason is not None, True)
        assert streamed == detokenizer.output_text
        if reason is not None:
            break
    assert streamed == KEPT


def test_thinking_counts_although_its_tags_are_not_in_the_text(tokenizer: Any, kind: str) -> None:
    think = "<think>\\boxed{1}</think>\\boxed{2}."
    ids = tokenizer.encode(think, add_special_tokens=False)
    detokenizer = make(tokenizer, prompt="Q", skip_special_tokens=True)
    assert feed(detokenizer, ids, []) == "contract:boxed_integer"
    assert detokenizer.output_text.endswith("\\boxed{2}")


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("<think>\nold\n</think>\n\nhi", "\\boxed{1}"),
        ("<think>\nold\n</think>\n\nhi <think>", "\\boxed{1}.</think>\\boxed{2}"),
    ],
)
def test_old_thinking_in_the_prompt_does_not_count(
    tokenizer: Any, kind: str, prompt: str, text: str
) -> None:
    """A closed block marked the new one done: ggml-org/llama.cpp#22323."""
    ids = tokenizer.encode("\\boxed{1}.</think>\\boxed{2}.", add_special_tokens=False)
    detokenizer = make(tokenizer, prompt=prompt)
    feed(detokenizer, ids, [])
    assert detokenizer.output_text == text


def test_a_contract_may_come_as_json_text(tokenizer: Any) -> None:
    ids = tokenizer.encode(OUTPUT, add_special_tokens=False)
    for spec in ('{"type": "boxed_integer", "min": 43}', {"type": "boxed_integer", "min": 43}):
        detokenizer = make(tokenizer, contract=spec)
        feed(detokenizer, ids, [])
        assert detokenizer.output_text.endswith("\\boxed{43}")


def test_installing_twice_changes_nothing(tokenizer: Any) -> None:
    before = vllm_detokenizer.IncrementalDetokenizer.__dict__["from_new_request"]
    contract_stop.install()
    assert vllm_detokenizer.IncrementalDetokenizer.__dict__["from_new_request"] is before


def test_a_missing_seam_is_named_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from specexit.errors import SpecExitError

    monkeypatch.delattr(vllm_detokenizer, "SlowIncrementalDetokenizer")
    with pytest.raises(SpecExitError, match="SlowIncrementalDetokenizer"):
        contract_stop.install()
