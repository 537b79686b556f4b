"""Speed of a training step: with signals against without, packed against one trace at a time."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from specexit.cli import parser, set_verbosity
from specexit.config import load
from specexit.files import write_json
from training.config import TrainConfig
from training.engine import make_accelerator
from training.loop import Step, Trainer
from training.refine import new_signals
from training.run import thinking_features
from training.setup import prepare


def main(argv: list[str]) -> int:
    """`specexit bench train [--config FILE] [--json F] [key=value ...]`."""
    p = parser(
        "bench train",
        "Speed of training steps: with signals against without (paired), and packed rows against "
        "one trace at a time.",
        config=True,
        json=True,
    )
    p.add_argument("--steps", type=int, default=8, help="paired steps to time")
    args = p.parse_intermixed_args(argv)
    set_verbosity(args)
    config = load(TrainConfig, args.config, args.overrides)
    result = bench_train(config, steps=args.steps, progress=not args.quiet)
    for name, value in result.items():
        print(f"{name:<28} {value:.3f}" if isinstance(value, float) else f"{name:<28} {value}")
    if args.json:
        write_json(args.json, result)
    return 0


def bench_train(
    config: TrainConfig, *, steps: int = 8, out: Path | None = None, progress: bool = False
) -> dict[str, Any]:
    """Time paired steps: each global batch is trained once without and once with signals, in turn.

    Returns:
        `ratio_signals_on_off`: median over steps of tokens/s with signals / without;
        `tokens_per_s_signals_on`, `tokens_per_s_signals_off`; `step_ms_packed`,
        `step_ms_unpacked`: median over the same steps, of packed rows and of a plain loop over
        single traces, both without signals; `ratio_packed_unpacked`: median over steps of unpacked
        time / packed time; `steps`, `tokens`.
    """
    accelerator = make_accelerator(config)
    run = prepare(config, accelerator.device, progress=progress)
    folder = out or Path("runs/bench-train")
    plain = Trainer(run, None, accelerator, "single", folder)
    items = thinking_features(run, progress=False)
    fresh = prepare(config, accelerator.device, progress=progress)
    fresh.source = run.source  # the features are the same
    signals = new_signals(config.signals.heads[0], items, config.signals)
    full = Trainer(fresh, signals, make_accelerator(config), "single", folder)
    ratios, packed, on, off, tokens = [], [], 0.0, 0.0, 0
    plan = list(full.plan())
    for number, step in enumerate(plan[: steps + 1]):
        first, second = (plain, full) if number % 2 else (full, plain)
        seconds = {id(t): _timed(t, step, accelerator.device) for t in (first, second)}
        if number == 0:
            continue  # warm-up
        without, with_signals = seconds[id(plain)], seconds[id(full)]
        ratios.append(without / with_signals)
        packed.append(without)
        off += without
        on += with_signals
        tokens += sum(full.lengths[i] for row in step.rows for i in row)
    unpacked = [_unpacked(plain, step) for step in plan[1 : steps + 1]]
    return {
        "ratio_signals_on_off": statistics.median(ratios),
        "tokens_per_s_signals_on": tokens / on,
        "tokens_per_s_signals_off": tokens / off,
        "step_ms_packed": 1000 * statistics.median(packed),
        "step_ms_unpacked": 1000 * statistics.median(unpacked),
        "ratio_packed_unpacked": statistics.median(
            u / p for u, p in zip(unpacked, packed, strict=True)
        ),
        "steps": len(ratios),
        "tokens": tokens,
    }


def _timed(trainer: Trainer, step: Step, device: torch.device) -> float:
    _synchronise(device)
    began = time.perf_counter()
    trainer.one_step(step)
    _synchronise(device)
    return time.perf_counter() - began


def _unpacked(trainer: Trainer, step: Step) -> float:
    """Seconds of a step that runs its traces one after the other, each alone in its row."""
    counts = trainer.counts(step.rows)
    _synchronise(trainer.accelerator.device)
    began = time.perf_counter()
    for i in (i for row in step.rows for i in row):
        batch = trainer.collate([[i]])
        out = trainer.wrapped(batch, trainer.run.source.states(batch), counts)
        trainer.accelerator.backward(out.loss)
    trainer.prepared.step()
    trainer.prepared.zero_grad()
    _synchronise(trainer.accelerator.device)
    return time.perf_counter() - began


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
