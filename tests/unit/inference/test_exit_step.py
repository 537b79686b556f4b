"""The vectorised step equals the sequential rule, whatever the drafts, batches and preemptions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch

from inference.vllm.exit_host import Edit, HostExit
from inference.vllm.exit_plan import make_plan
from inference.vllm.exit_state import Admission, Count, ExitState, Flag
from inference.vllm.exit_step import REJECTED, StepInputs, StepResult, step
from inference.vllm.host_signals import MOST_PENDING
from inference.vllm.record import Event
from specexit.heads.signal import SignalHead, activate
from specexit.policy import ExitPolicy, Smoothing, Thresholds
from specexit.split import StepSplitter
from specexit.think import ThinkFormat
from tests.unit.inference.sequential import Sequential, World, opening

# 0 start, 1 end, 2 "\n\n", 3 "\n", 4 "</", 5 "think", 6 ">", 7 "Wait", 8.. words
TEXTS = ["<t>", "</t>", ".\n\n", "\n", "</", "think", ">", " Wait", "a", "b", "c", "<", "d"]
WEIGHTS = [1, 1, 4, 3, 2, 2, 2, 2, 8, 8, 8, 1, 8]
SINGLE = ThinkFormat((0,), (1,))
MULTI = ThinkFormat((11, 5, 6), (4, 5, 6))
V = len(TEXTS)
SLOTS = 4
LENGTH = 60  # outputs wanted of each request; the reference goes on a little further


def make_head(kind: str, seed: int) -> SignalHead:
    torch.manual_seed(seed)
    rows = 3 if kind == "linear" else 4
    head = SignalHead(kind, rows, rows=rows, readout_size=8)  # type: ignore[arg-type]
    head.requires_grad_(False).eval()
    for parameter in head.parameters():
        parameter.mul_(2)
    head.projection.weight.copy_(torch.eye(rows))  # the simulator's features are z itself
    head.projection.bias.zero_()
    return head


def random_policy(rng: random.Random, unit: str = "token") -> ExitPolicy:
    signals = rng.choice(
        [("confidence",), ("progress", "remain"), ("confidence", "progress", "remain"), ()]
    )
    return ExitPolicy(
        enabled=rng.random() < 0.9,
        signals=signals,
        thresholds=Thresholds(
            confidence=rng.uniform(0, 0.7), progress=rng.uniform(0, 0.7), remain=rng.uniform(0.5, 9)
        ),
        smoothing=Smoothing(
            kind=rng.choice(["ewma", "ewma", "none"]), alpha=rng.choice([0.1, 0.5, 1.0]), unit=unit
        ),
        patience=rng.choice([1, 1, 2, 3]),
        min_think_tokens=rng.choice([0, 0, 7, 20]),
        min_boundaries=rng.choice([1, 1, 3]),
        max_think_tokens=rng.choice([1, 2, 10, 25]) if not signals or rng.random() < 0.3 else None,
        step_split=rng.choice(["paragraph", "discourse"]),
        exit_suffix=rng.choice(["", "", "ab"]),
        reenter=rng.random() < 0.5,
    )


def encode(text: str) -> list[int]:
    return [TEXTS.index(c) for c in text]


@dataclass
class Running:
    """One request as the engine simulator sees it."""

    reference: Sequential
    expected: list[int]
    slot: int = -1
    ids: list[int] = field(default_factory=list)
    closed: int = 0
    injected: list[int] = field(default_factory=list)
    natural: list[int] = field(default_factory=list)
    raw: list[tuple[float, ...]] = field(default_factory=list)
    saved: object = None
    chunks: int = 0


def simulate(
    rng: random.Random,
    requests: list[Running],
    state: ExitState | HostExit,
    think: ThinkFormat,
    K: int,
) -> int:
    """Run all requests to their end in mixed batches; returns the number of steps."""
    free = list(range(SLOTS))
    waiting, running, steps = list(requests), [], 0
    while waiting or running:
        arrivals = []
        while waiting and free and rng.random() < 0.7:
            r = waiting.pop()
            r.slot = free.pop(rng.randrange(len(free)))
            r.ids = r.ids or list(r.reference.prompt)
            r.chunks = rng.choice([0, 0, 1, 2])
            arrivals.append(admission(r, think))
            running.append(r)
        state.admit(arrivals)
        if not running:
            continue
        rng.shuffle(running)
        advance(rng, running, state, K)
        steps += 1
        for r in list(running):
            done = len(r.ids) - len(r.reference.prompt) >= LENGTH
            preempted = not done and rng.random() < 0.03
            if done or preempted:
                running.remove(r)
                free.append(r.slot)
            if preempted:
                r.saved = state.snapshot(r.slot)
                waiting.append(r)
            elif done and isinstance(state, HostExit):
                row = state.release(r.slot)
                assert row is not None
                r.raw = row.raw
    return steps


def admission(r: Running, think: ThinkFormat) -> Admission:
    prompt, policy = r.reference.prompt, r.reference.policy
    plan = make_plan(policy, think.end_ids, encode)
    return Admission(
        slot=r.slot,
        plan=plan,
        thinking=think.is_thinking(prompt),
        open_prompt=r.reference.open_prompt,
        outputs=len(r.ids) - len(prompt),
        tokens=0,
        boundary=0,
        tail=r.ids[:-1],
        last=r.ids[-1],
        snapshot=r.saved,
    )


def advance(
    rng: random.Random, running: list[Running], state: ExitState | HostExit, K: int
) -> None:
    """One verification step: proposals, the target's answers, acceptance, the exit rule."""
    W = rng.randint(1, K + 1)
    B = len(running)
    inputs = torch.randint(V, (B, W))
    sampled = torch.full((B, W), REJECTED)
    n = torch.zeros(B, dtype=torch.int64)
    z = torch.randn(B, W, running[0].reference.world.head.rows)
    assert B <= SLOTS
    for b, r in enumerate(running):
        if r.chunks:  # a chunk of the prompt: computed, not sampled
            r.chunks -= 1
            sampled[b, 0] = rng.randrange(V)
            continue
        world, prefix = r.reference.world, list(r.ids)
        for i in range(rng.randint(1, W)):
            inputs[b, i] = prefix[-1]
            z[b, i] = world.z(len(prefix) - 1, r.closed)
            answer = world.next_token(len(prefix), r.closed)
            sampled[b, i] = answer
            n[b] = i + 1
            if rng.random() < 0.15:
                break  # the next draft is wrong
            prefix.append(answer)
    if isinstance(state, HostExit):
        flat = z.flatten(0, 1)
        layers = (flat[:, :1], flat[:, 1:])
        for b, r in enumerate(running):
            if n[b]:
                accepted = sampled[b, : n[b]].tolist()
                follow_host(r, accepted, *state.step(r.slot, accepted, layers, b * W))
        return
    result = step(
        state,
        StepInputs(torch.tensor([r.slot for r in running]), inputs, sampled, n, z),
    )
    for b, r in enumerate(running):
        follow(r, result, b)


def follow_host(r: Running, accepted: list[int], edit: Edit | None, event: Event | None) -> None:
    """Append what the host's step left of a row to the request."""
    if event is not None and event.kind == "natural":
        r.natural.append(event.position)
    if event is not None and event.kind == "injected":
        r.injected.append(event.position)
        r.closed += 1
        known = len(r.reference.smoothed_at[event.position])
        assert known == 3
        assert event.signals == pytest.approx(r.reference.smoothed_at[event.position], rel=1e-4)
        assert event.think_tokens == r.reference.tokens_at[event.position]
    r.ids += accepted if edit is None else [*accepted[: edit.kept], edit.token]


def follow(r: Running, result: StepResult, b: int) -> None:
    """Append a row's result to the request, checking its shape."""
    count = int(result.num_sampled[b])
    row = result.sampled[b].tolist()
    assert all(t != REJECTED for t in row[:count])
    assert all(t == REJECTED for t in row[count:])
    position = len(r.ids) - len(r.reference.prompt)
    if count:
        assert int(result.position[b]) == position
    column, ended = int(result.injected[b]), int(result.ended[b])
    if ended >= 0:
        r.natural.append(position + ended - len(r.reference.think.end_ids))
    if column >= 0:
        assert column == count - 1
        r.injected.append(position + column - int(result.begun[b]))
        r.closed += 1
    taken = result.takes[b]
    r.raw += [tuple(s) for s in result.signals[b][taken].tolist()]
    if taken.any():
        wanted = torch.tensor(r.reference.smoothed[len(r.raw) - 1])
        torch.testing.assert_close(result.smoothed[b], wanted, rtol=1e-4, atol=1e-5)
    r.ids += row[:count]


def make_requests(rng: random.Random, head: SignalHead, think: ThinkFormat) -> list[Running]:
    requests: list[Running] = []
    splitter = {
        mode: StepSplitter.from_texts(TEXTS, vocab_size=V + 1, mode=mode)  # type: ignore[arg-type]
        for mode in ("paragraph", "discourse")
    }
    while len(requests) < 9:
        policy = random_policy(rng)
        start = list(think.start_ids)
        prompt = rng.choice(
            [
                [8, 9],
                [8, *start],
                [8, *start, 3],
                [8, *start, 9, *think.end_ids, 8, *start],
                [8, *start, 9, *think.end_ids, 8],
            ]
        )
        reference = Sequential(
            World(rng.randrange(2**30), list(range(V)), WEIGHTS, head),
            policy,
            think,
            splitter[policy.step_split],
            prompt,
            make_plan(policy, think.end_ids, encode).forced,
            open_prompt=opening(prompt, think),
        )
        expected = reference.run(LENGTH + 8)
        if reference.margin > 1e-4:  # a tie between fp32 and Python's floats decides nothing here
            requests.append(Running(reference, expected))
    return requests


@pytest.mark.parametrize("path", ["tensors", "host"])
@pytest.mark.parametrize("think", [SINGLE, MULTI], ids=["one-token-tags", "three-token-tags"])
@pytest.mark.parametrize("kind", ["linear", "mlp", "memory"])
def test_step_equals_the_sequential_rule(kind: str, think: ThinkFormat, path: str) -> None:
    steps = exits = 0
    for seed in range(4):
        rng = random.Random(f"{kind}/{len(think.end_ids)}/{seed}")
        torch.manual_seed(seed)
        head = make_head(kind, seed)
        splitter = StepSplitter.from_texts(TEXTS, vocab_size=V + 1)
        state: ExitState | HostExit = ExitState(SLOTS, head, think, splitter, "cpu")
        if path == "host":
            state = HostExit(SLOTS, head, think, splitter, keep_raw=True)
        requests = make_requests(rng, head, think)
        steps += simulate(rng, requests, state, think, K=rng.choice([1, 2, 3, 5]))
        for r in requests:
            got = r.ids[len(r.reference.prompt) :]
            assert got == r.expected[: len(got)], r.reference.policy
            assert r.injected == [p for p in r.reference.injected if p < len(got)]
            assert r.natural == r.reference.natural[: len(r.natural)]
            exits += len(r.injected)
            raw = torch.tensor(r.raw)
            wanted = torch.tensor(r.reference.raw[: len(raw)])
            torch.testing.assert_close(raw, wanted, rtol=1e-4, atol=1e-5)
    assert steps > 200
    assert exits >= 8


def by_step(policy: ExitPolicy, steps: list[list[tuple[tuple[float, ...], bool]]]) -> int | None:
    """`unit: step` in plain Python: index of the step that ends the thinking, None if none does.

    `steps` holds (raw signals, is_boundary) of each accepted token. In the `reference` preset the
    value before the step is tested, and only at the step's first boundary.
    """
    value: tuple[float, ...] | None = None
    streak, alpha = 0, policy.smoothing.alpha
    for index, tokens in enumerate(steps):
        before = value
        mean = tuple(sum(c) / len(tokens) for c in zip(*(s for s, _ in tokens), strict=True))
        if value is None:
            value = mean
        else:
            value = tuple(alpha * n + (1 - alpha) * o for n, o in zip(mean, value, strict=True))
        boundaries = [b for _, b in tokens if b]
        tested = value
        if policy.preset == "reference":
            boundaries, tested = boundaries[:1], before  # type: ignore[assignment]
        for _ in boundaries:
            passes = tested is not None and policy.passes(tested)  # type: ignore[arg-type]
            streak = streak + 1 if passes else 0
            if streak >= policy.patience:
                return index
    return None


@pytest.mark.parametrize("preset", ["default", "reference"])
def test_step_unit_smooths_the_mean_of_a_step(preset: str) -> None:
    exits = 0
    for seed in range(40):
        rng = random.Random(f"{preset}/{seed}")
        head = make_head("linear", seed)
        policy = ExitPolicy.model_validate(
            {
                "preset": preset,
                "signals": ["confidence", "remain"],
                "thresholds": {"confidence": rng.uniform(0.4, 0.7), "remain": rng.uniform(1, 9)},
                "smoothing": {"unit": "step", "alpha": rng.choice([0.1, 0.5])},
                "patience": rng.choice([1, 2]),
            }
        )
        state = ExitState(1, head, SINGLE, StepSplitter.from_texts(TEXTS, vocab_size=V + 1), "cpu")
        plan = make_plan(policy, (1,))
        state.admit([Admission(0, plan, True, False, 0, 0, 0, [0])])
        host = HostExit(1, head, SINGLE, StepSplitter.from_texts(TEXTS, vocab_size=V + 1))
        host.admit([Admission(0, plan, True, False, 0, 0, 0, [], last=0)])
        steps: list[list[tuple[tuple[float, ...], bool]]] = []
        found = found_by_host = None
        sizes = [1] + [rng.randint(1, 4) for _ in range(30)]
        generator = torch.Generator().manual_seed(seed)
        last = 0
        for index, size in enumerate(sizes):
            sampled = torch.tensor([[rng.choice([2, 8, 9, 10]) for _ in range(4)]])
            inputs = torch.cat([torch.tensor([[last]]), sampled[:, :3]], 1)
            last = int(sampled[0, size - 1])
            z = torch.randn(1, 4, 3, generator=generator) * 2
            batch = StepInputs(torch.tensor([0]), inputs, sampled, torch.tensor([size]), z)
            result = step(state, batch)
            if found_by_host is None:
                _, event = host.step(0, sampled[0, :size].tolist(), (z[0],), 0)
                found_by_host = None if event is None else index - 1
            if index == 0:  # the prompt's last token
                assert not result.takes.any()
                continue
            taken = result.signals[0, :size].tolist()
            steps.append(
                [(tuple(s), t == 2) for s, t in zip(taken, inputs[0].tolist(), strict=False)]
            )
            if found is None and int(result.injected[0]) >= 0:
                found = index - 1
        assert found_by_host == by_step(policy, steps)
        assert found == by_step(policy, steps)
        exits += found is not None
    assert exits >= 10


def test_disabled_request_changes_nothing() -> None:
    head = make_head("memory", 0)
    state = ExitState(2, head, SINGLE, StepSplitter.from_texts(TEXTS, vocab_size=V + 1), "cpu")
    plan = make_plan(ExitPolicy(enabled=False, max_think_tokens=1), (1,))
    state.admit([Admission(1, plan, True, False, 3, 0, 0, [0])])
    sampled = torch.tensor([[2, 9, REJECTED]])
    result = step(
        state,
        StepInputs(
            torch.tensor([1]),
            torch.tensor([[2, 2, 0]]),
            sampled,
            torch.tensor([2]),
            torch.randn(1, 3, 4),
        ),
    )
    assert result.sampled.tolist() == sampled.tolist()
    assert not result.takes.any()
    assert state.counts[1, Count.OUTPUTS] == 5


def test_snapshot_restores_a_slot_and_nothing_leaks_into_the_next_request() -> None:
    head = make_head("memory", 0)
    state = ExitState(2, head, SINGLE, StepSplitter.from_texts(TEXTS, vocab_size=V + 1), "cpu")
    plan = make_plan(ExitPolicy(thresholds=Thresholds(confidence=1.0)), (1,))
    fresh = Admission(0, plan, True, False, 0, 0, 0, [0])
    state.admit([fresh])
    clean = [t.clone() for t in (state.counts[0], state.flags[0], state.floats[0])]
    inputs = torch.tensor([[2, 9, 2]])
    for _ in range(3):
        batch = StepInputs(
            torch.tensor([0]), inputs, inputs, torch.tensor([3]), torch.randn(1, 3, 4)
        )
        step(state, batch)
    saved = state.snapshot(0)
    assert state.flags[0, Flag.SMOOTHED]
    state.admit([fresh])
    for got, wanted in zip((state.counts[0], state.flags[0], state.floats[0]), clean, strict=True):
        assert torch.equal(got, wanted)
    state.admit([Admission(1, plan, True, False, 9, 0, 0, [2], snapshot=saved)])
    again = state.snapshot(1)
    for name in ("counts", "flags", "floats", "history"):
        assert torch.equal(getattr(again, name), getattr(saved, name)), name


@pytest.mark.parametrize("length", [MOST_PENDING - 1, MOST_PENDING, MOST_PENDING + 1, 300])
def test_paragraph_longer_than_what_may_wait_has_the_signals_of_one_pass(length: int) -> None:
    head = make_head("memory", 3)
    host = HostExit(
        1, head, SINGLE, StepSplitter.from_texts(TEXTS, vocab_size=V + 1), keep_raw=True
    )
    plan = make_plan(ExitPolicy(thresholds={"confidence": 1.0}), (1,))
    host.admit([Admission(0, plan, True, False, 0, 0, 0, [], last=0)])
    ids = [8] * length + [2, 8, 8]  # a paragraph, its boundary, the start of the next one
    features = torch.randn(len(ids) + 1, 4, generator=torch.Generator().manual_seed(0))
    host.step(0, ids[:1], (features,), 0)  # the prompt's last token
    for i in range(len(ids) - 1):
        host.step(0, ids[i + 1 : i + 2], (features,), i + 1)
    row = host.release(0)
    assert row is not None
    taken = features[1 : len(ids)]
    splits = torch.tensor([[t == 2 for t in ids[:-1]]])
    wanted = activate(head(head.project(taken)[None], splits))[0]
    torch.testing.assert_close(torch.tensor(row.raw), wanted, atol=1e-5, rtol=1e-5)
