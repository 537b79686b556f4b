"""Run the exit kernel and its torch oracle side by side on random steps, under the interpreter.

`python -m tests.unit.inference.kernel_fuzz SEED STEPS`, with TRITON_INTERPRET=1 in the environment
(Triton reads it when it is imported). Prints a line of JSON: what ran and what differed.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch

from inference.vllm import exit_step
from inference.vllm.exit_kernel import KernelStep
from inference.vllm.exit_plan import make_plan
from inference.vllm.exit_state import Admission, ExitState
from inference.vllm.exit_step import StepInputs, StepResult
from specexit.heads.signal import SignalHead
from specexit.policy import ExitPolicy
from specexit.split import StepSplitter
from specexit.think import ThinkFormat
from tests.interpreter import quicken
from tests.unit.inference.test_exit_step import MULTI, SINGLE, TEXTS, WEIGHTS, V, encode

NO_START = ThinkFormat((), (1,))
SLOTS = 4
EXACT = ("sampled", "num_sampled", "injected", "ended", "takes", "position", "tokens", "boundary")
STATE = ("counts", "flags", "history")
# fp32 on both sides; sums and exponentials in another order
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def policy_of(rng: random.Random) -> ExitPolicy:
    """Any policy that the engine takes, with limits that are met often."""
    signals = rng.choice([["confidence"], ["progress", "remain"], [*"abc"], []])
    if len(signals) == 3:
        signals = ["confidence", "progress", "remain"]
    values: dict[str, Any] = {
        "enabled": rng.random() < 0.9,
        "signals": signals,
        "preset": rng.choice(["default", "default", "reference"]),
        "thresholds": {
            "confidence": rng.uniform(0, 0.7),
            "progress": rng.uniform(0, 0.7),
            "remain": rng.uniform(0.5, 9),
        },
        "smoothing": {
            "kind": rng.choice(["ewma", "ewma", "none"]),
            "alpha": rng.choice([0.1, 0.5, 1.0]),
            "unit": rng.choice(["token", "step"]),
        },
        "patience": rng.choice([1, 1, 2]),
        "min_think_tokens": rng.choice([0, 0, 7]),
        "min_boundaries": rng.choice([1, 1, 3]),
        "step_split": rng.choice(["paragraph", "discourse"]),
        "exit_suffix": rng.choice(["", "", "ab"]),
        "reenter": rng.random() < 0.5,
    }
    if not signals or rng.random() < 0.3:
        values["max_think_tokens"] = rng.choice([1, 2, 10, 25])
    return ExitPolicy.model_validate(values)


def admit(rng: random.Random, states: list[ExitState], slot: int, think: ThinkFormat) -> None:
    """The same random request into the same slot of both states."""
    new = rng.random() < 0.5
    admission = Admission(
        slot=slot,
        plan=make_plan(policy_of(rng), think.end_ids, encode),
        thinking=rng.random() < 0.8,
        open_prompt=rng.random() < 0.5,
        outputs=0 if new else rng.randint(1, 30),
        tokens=0 if new else rng.randint(0, 9),
        boundary=0 if new else rng.randint(0, 3),
        tail=rng.choices(range(V), WEIGHTS, k=rng.randint(0, 3)),
        closed=rng.random() < 0.2,
    )
    for state in states:
        state.admit([admission])


def random_step(rng: random.Random, head: SignalHead, width: int, tags: list[int]) -> StepInputs:
    """A step of some of the slots; columns after `num_sampled` hold what may be there."""
    slots = rng.sample(range(SLOTS), rng.randint(1, SLOTS))
    B = len(slots)

    def ids() -> torch.Tensor:
        rows = [rng.choices(range(V), WEIGHTS, k=width) for _ in slots]
        for row in rows:
            if rng.random() < 0.3:  # a whole tag in a row, as a multi-token think end is
                at = rng.randint(0, width - 1)
                row[at : at + len(tags)] = tags[: width - at]
        return torch.tensor(rows)

    return StepInputs(
        slots=torch.tensor(slots),
        inputs=ids(),
        sampled=ids(),
        num_sampled=torch.tensor([rng.choice([0, 1, *range(1, width + 1)]) for _ in slots]),
        z=torch.randn(B, width, head.rows) * 2,
    )


def differences(
    got: StepResult, wanted: StepResult, ours: ExitState, theirs: ExitState
) -> list[str]:
    """Names of what is not the same in two results and two states."""
    wrong = [n for n in EXACT if not torch.equal(getattr(got, n), getattr(wanted, n))]
    wrong += [n for n in STATE if not torch.equal(getattr(ours, n), getattr(theirs, n))]
    injected = wanted.injected >= 0
    if not torch.equal(got.begun[injected], wanted.begun[injected]):
        wrong.append("begun")
    if not torch.allclose(got.smoothed, wanted.smoothed, **TOLERANCE):
        wrong.append("smoothed")
    if not torch.allclose(got.signals[got.takes], wanted.signals[got.takes], **TOLERANCE):
        wrong.append("signals")
    if not torch.allclose(ours.floats, theirs.floats, **TOLERANCE):
        wrong.append("floats")
    return wrong


def fuzz(kind: str, think: ThinkFormat, seed: int, steps: int) -> dict[str, Any]:
    """`steps` steps of random requests in both implementations."""
    rng = random.Random(f"{kind}/{think.end_ids}/{seed}")
    torch.manual_seed(rng.randrange(2**31))
    head = SignalHead(kind, 6, rows=5, readout_size=9).requires_grad_(False).eval()  # type: ignore[arg-type]
    splitter = StepSplitter.from_texts(TEXTS, vocab_size=V + 1)
    ours, theirs = (ExitState(SLOTS, head, think, splitter, "cpu") for _ in range(2))
    for slot in range(SLOTS):
        admit(rng, [ours, theirs], slot, think)
    kernel, width = KernelStep(), rng.choice([1, 2, 4, 6])
    tally: dict[str, Any] = {"rows": 0, "injected": 0, "natural": 0, "wrong": []}
    for number in range(steps):
        if rng.random() < 0.3:
            admit(rng, [ours, theirs], rng.randrange(SLOTS), think)
        tags = list(rng.choice([think.end_ids, think.start_ids or think.end_ids]))
        batch = random_step(rng, head, width, tags)
        got = kernel(ours, batch)
        wanted = exit_step.step(theirs, batch)
        wrong = differences(got, wanted, ours, theirs)
        if wrong:
            tally["wrong"].append([kind, seed, number, wrong])
            ours.floats.copy_(theirs.floats)
        tally["rows"] += len(batch.slots)
        tally["injected"] += int((wanted.injected >= 0).sum())
        tally["natural"] += int((wanted.ended >= 0).sum())
    return tally


def main(seed: int, steps: int) -> None:
    """Every kind of head with every kind of tag."""
    torch.set_num_threads(1)
    quicken()
    total: dict[str, Any] = {"rows": 0, "injected": 0, "natural": 0, "wrong": []}
    for kind in ("linear", "mlp", "memory"):
        for think in (SINGLE, MULTI, NO_START):
            for part in range(4):  # widths and heads differ between the parts
                tally = fuzz(kind, think, 4 * seed + part, -(-steps // 36))
                total = {k: total[k] + tally[k] for k in total}
    print(json.dumps(total))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
