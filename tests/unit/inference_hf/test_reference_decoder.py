"""The reference decoder: equal to transformers, exits independent of the drafts, exact tails."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inference import hf
from inference.exit_follower import ExitFollower
from specexit.errors import CheckpointError, ConfigError
from specexit.heads.signal import activate
from specexit.policy import ExitPolicy, ExitTracker
from specexit.think import ThinkFormat

from .conftest import BLANK, END, START, Parts

OFF = ExitPolicy(enabled=False)
N = 40


def prompts(n: int = 8) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [*torch.randint(6, 50, (3 + i,), generator=generator).tolist(), START] for i in range(n)
    ]


def plain(model: Any, prompt: list[int], n: int) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False
        )
    return out[0, len(prompt) :].tolist()


def middling(draft: hf.Draft, model: Any) -> ExitPolicy:
    """A policy that ends about half of the random thinkings somewhere."""
    remains = []
    for prompt in prompts():
        signals = hf.generate(model, draft, prompt, policy=NEVER, max_new_tokens=N).signals
        remains += [s[2] for s in signals]
    return ExitPolicy(
        signals=("remain",), thresholds={"remain": in_a_gap(remains)}, smoothing={"alpha": 0.5}
    )


def in_a_gap(values: list[float]) -> float:
    """A threshold above nine tenths of the values, away from each of them: no rounding decides."""
    ordered = sorted(values)
    low = ordered[9 * len(ordered) // 10]
    high = next((v for v in ordered if v > 1.001 * low), 1.1 * low)
    return (low + high) / 2


def features_of(model: Any, ids: list[int]) -> torch.Tensor:
    """`[n, 3H]`: aux ids 1, 2 and 4, the last being the last layer's output before the norm."""
    last: list[torch.Tensor] = []
    hook = model.model.layers[-1].register_forward_hook(lambda _m, _i, out: last.append(out))
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    hook.remove()
    return torch.cat([states[1], states[2], last[0]], -1)[0]


NEVER = ExitPolicy(thresholds={"confidence": 1.0})


@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_exit_off_equals_plain_greedy(draft: hf.Draft, parts: Parts, k: int) -> None:
    accepted = 0
    for prompt in prompts():
        result = hf.generate(
            parts.model, draft, prompt, policy=OFF, num_speculative_tokens=k, max_new_tokens=N
        )
        assert result.output_ids == plain(parts.model, prompt, N)
        accepted += sum(result.accepted)
    assert (accepted > 0) == (k > 0)  # some drafts must be right, or nothing was tested


def test_an_exit_that_never_passes_changes_nothing(draft: hf.Draft, parts: Parts) -> None:
    for prompt in prompts():
        result = hf.generate(parts.model, draft, prompt, policy=NEVER, max_new_tokens=N)
        assert result.output_ids == plain(parts.model, prompt, N)
        assert result.exit.kind in ("natural", "none")


def test_exits_do_not_depend_on_the_number_of_drafts(draft: hf.Draft, parts: Parts) -> None:
    policy = middling(draft, parts.model)
    kinds = []
    for prompt in prompts():
        runs = [
            hf.generate(
                parts.model,
                draft,
                prompt,
                policy=policy,
                num_speculative_tokens=k,
                max_new_tokens=N,
            )
            for k in (0, 2, 5)
        ]
        assert len({tuple(run.output_ids) for run in runs}) == 1
        assert len({(run.exit.kind, run.exit.position, run.exit.boundary) for run in runs}) == 1
        for run in runs[1:]:
            torch.testing.assert_close(
                torch.tensor(run.signals), torch.tensor(runs[0].signals), rtol=1e-4, atol=1e-5
            )
        kinds.append(runs[0].exit.kind)
    assert kinds.count("injected") >= 2


def test_an_exit_keeps_the_head_and_the_tail_equals_a_fresh_run(
    draft: hf.Draft, parts: Parts
) -> None:
    policy = middling(draft, parts.model)
    injected = 0
    for prompt in prompts():
        run = hf.generate(parts.model, draft, prompt, policy=policy, max_new_tokens=N)
        if run.exit.kind != "injected":
            continue
        injected += 1
        at = run.exit.position
        assert at is not None
        assert run.output_ids[:at] == plain(parts.model, prompt, N)[:at]
        assert run.output_ids[at] == END
        assert run.output_ids[at - 1] in (BLANK, 5)  # right after a blank line
        rest = N - at - 1
        assert run.output_ids[at + 1 :] == plain(
            parts.model, prompt + run.output_ids[: at + 1], rest
        )
    assert injected >= 2


def test_signals_equal_those_of_one_pass_over_the_text(draft: hf.Draft, parts: Parts) -> None:
    """Independent computation: hidden states of the finished text, the head's batch form."""
    compared = 0
    for prompt in prompts(6):
        run = hf.generate(parts.model, draft, prompt, policy=NEVER, max_new_tokens=N)
        features = features_of(parts.model, prompt + run.output_ids)
        end = run.output_ids.index(END) if END in run.output_ids else len(run.output_ids) - 1
        thinking = run.output_ids[:end]
        rows = draft.eagle.normalise(features[len(prompt) : len(prompt) + end])
        at = torch.zeros(1, end, dtype=torch.bool)
        for boundary in draft.splitter.boundaries(thinking, previous=START)[1:]:
            at[0, boundary - 1] = True
        with torch.no_grad():
            logits = draft.signals(draft.signals.project(rows)[None], at)[0]
        expected = activate(logits)
        torch.testing.assert_close(torch.tensor(run.signals), expected, rtol=1e-4, atol=1e-5)
        compared += end
    assert compared > 60


def test_max_think_tokens_ends_the_thinking_at_the_hard_limit(
    draft: hf.Draft, parts: Parts
) -> None:
    policy = ExitPolicy(signals=(), max_think_tokens=10)
    for prompt in prompts():
        run = hf.generate(parts.model, draft, prompt, policy=policy, max_new_tokens=N)
        assert run.exit.position is not None
        assert run.exit.position <= 11


def test_an_exit_suffix_follows_the_think_end(draft: hf.Draft, parts: Parts) -> None:
    policy = ExitPolicy(signals=(), max_think_tokens=10, exit_suffix="So.")
    suffix = parts.tokenizer.encode("So.", add_special_tokens=False)
    for k in (0, 3):
        run = hf.generate(
            parts.model,
            draft,
            prompts()[0],
            policy=policy,
            num_speculative_tokens=k,
            max_new_tokens=N,
        )
        at = run.exit.position
        assert at is not None
        assert run.output_ids[at : at + 1 + len(suffix)] == [END, *suffix]


def test_a_contract_ends_the_output_after_the_thinking(draft: hf.Draft, parts: Parts) -> None:
    suffix = "\\boxed{7}"
    policy = ExitPolicy(signals=(), max_think_tokens=10, exit_suffix=suffix)
    run = hf.generate(
        parts.model,
        draft,
        prompts()[0],
        policy=policy,
        max_new_tokens=N,
        contract_="boxed_integer",
    )
    assert run.finish_reason == "stop"
    assert run.commit is not None
    assert run.commit.answer == "7"
    assert run.text.endswith(suffix)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_max_new_tokens_is_exact(draft: hf.Draft, parts: Parts, n: int) -> None:
    run = hf.generate(parts.model, draft, prompts()[1], policy=OFF, max_new_tokens=n)
    assert len(run.output_ids) == n
    assert run.finish_reason == "length"


def test_a_head_for_another_target_is_refused(draft: hf.Draft, parts: Parts) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    other = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=32
        )
    )
    with pytest.raises(CheckpointError, match="hidden_size is 32, the head expects 64"):
        hf.load_draft(parts.folder / "linear", other, parts.tokenizer)


def test_step_smoothing_is_refused(draft: hf.Draft, parts: Parts) -> None:
    policy = ExitPolicy(smoothing={"unit": "step"})
    with pytest.raises(ConfigError, match=r"smoothing\.unit"):
        hf.generate(parts.model, draft, prompts()[0], policy=policy, max_new_tokens=4)


def test_the_rule_is_the_policy_module_s(draft: hf.Draft, parts: Parts) -> None:
    policy = middling(draft, parts.model)
    for prompt in prompts(4):
        run = hf.generate(parts.model, draft, prompt, policy=policy, max_new_tokens=N)
        if run.exit.kind != "injected":
            continue
        tracker = ExitTracker(policy)
        thinking = run.output_ids[: len(run.signals)]
        bounds = set(draft.splitter.boundaries(thinking, previous=START))
        ends = [tracker.update(s, i + 1 in bounds) for i, s in enumerate(run.signals)]
        assert ends.index(True) == len(ends) - 1


def follower(draft: hf.Draft, think: ThinkFormat, **policy: Any) -> ExitFollower:
    chosen = ExitPolicy(**policy)
    return ExitFollower(chosen, draft.signals, think, draft.splitter, think.end_ids, draft.is_blank)


def walk(
    f: ExitFollower, prompt: list[int], outputs: list[int], choices: list[int] | None = None
) -> list[int]:
    """Positions after which the thinking had to end; features are zeros.

    `choices` are the target's own next tokens, where they are not the outputs that follow.
    """
    zeros = torch.zeros(len(prompt), f.head.projection.in_features)
    f.start(prompt, zeros, outputs[0])
    return [
        i
        for i, (token, after) in enumerate(zip(outputs, choices or [*outputs[1:], 0], strict=True))
        if f.take(token, zeros[0], after, i) >= 0
    ]


ALWAYS: dict[str, Any] = {"signals": ("remain",), "thresholds": {"remain": 1e9}}
SINGLE = ThinkFormat((START,), (END,))


def test_an_old_closed_block_in_the_prompt_does_not_hide_the_open_one(draft: hf.Draft) -> None:
    """`<think>old</think>hi ... <think>`: ggml-org/llama.cpp#22323."""
    old = [START, 30, BLANK, END, 31]
    assert walk(follower(draft, SINGLE, **ALWAYS), [*old, START], [30, BLANK, 31]) == [1]
    assert walk(follower(draft, SINGLE, **ALWAYS), old, [30, BLANK, 31]) == []


def test_a_model_that_opens_the_thinking_itself_is_followed(draft: hf.Draft) -> None:
    """Output starts with `<think>`: Blaizzy/mlx-vlm#1911."""
    f = follower(draft, SINGLE, **ALWAYS)
    assert walk(f, [30], [START, 30, BLANK, 31]) == [2]
    assert f.finish().position == 3


def test_a_thinking_that_starts_again_counts_only_where_the_policy_says_so(
    draft: hf.Draft,
) -> None:
    """The model re-opens after a forced close: vllm-project/vllm#43757."""
    outputs = [30, BLANK, END, START, 30, BLANK, END]
    choices = [BLANK, 31, START, 30, BLANK, 31, 31]  # both ends are forced
    assert walk(follower(draft, SINGLE, **ALWAYS), [START], outputs, choices) == [1]
    again = follower(draft, SINGLE, **ALWAYS, reenter=True)
    assert walk(again, [START], outputs, choices) == [1, 5]


def test_a_think_end_of_several_tokens_is_completed_not_repeated(draft: hf.Draft) -> None:
    """`</` `</` `end`: NVIDIA/TensorRT-LLM#18616."""
    think = ThinkFormat((START,), (15, 16, 17))
    f = follower(draft, think, signals=(), max_think_tokens=1)
    f.start([START], torch.zeros(1, f.head.projection.in_features), 30)
    row = torch.zeros(f.head.projection.in_features)
    assert f.take(30, row, 15, 0) == -1  # limit 1 at a boundary, 2 anywhere
    assert f.take(15, row, 30, 1) == 1  # the model had written the end's first id
    assert f.finish().position == 1


def test_a_natural_end_after_the_boundary_stays_natural(draft: hf.Draft) -> None:
    f = follower(draft, SINGLE, **ALWAYS)
    assert walk(f, [START], [30, BLANK, END, 31]) == []
    assert f.finish().kind == "natural"
    assert f.finish().position == 2


def test_white_space_after_the_think_start_belongs_to_the_prompt_s_opening(draft: hf.Draft) -> None:
    f = follower(draft, SINGLE, **ALWAYS)
    walk(f, [30, START, 6], [31, 31])
    assert len(f.signals) == 2
    f = follower(draft, SINGLE, **ALWAYS)
    walk(f, [30, START, 6, 31, BLANK], [31, 31])  # a continued thinking moves the state
    assert len(f.signals) == 4
    assert f.finish().boundary == 1
