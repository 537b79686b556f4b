"""The joint training loop: draft and first signal head, one optimiser step at a time."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from specexit.errors import SpecExitError
from specexit.files import write_json
from training.average import WeightAverage
from training.balance import TASKS, GradientMeter
from training.batch import Batch, collate
from training.config import TrainConfig
from training.engine import SHARDED, check_wrapper, configure_deepspeed
from training.examples import Example, signal_weights
from training.model import Counts, DraftModel
from training.optimiser import GroupClippedAdamW, learning_rate
from training.packing import epoch_batches, share
from training.resume import load_best, save_checkpoint
from training.setup import Run
from training.signals import SignalTrainer, StandardisedSignals
from training.validation import validate_and_keep_best, validation_rows

log = logging.getLogger(__name__)


class NonFiniteLossError(SpecExitError):
    """The loss is not finite; the batch's ids were saved."""


@dataclass(frozen=True)
class Step:
    """One optimiser step of the plan: its number, epoch and packed rows."""

    number: int
    epoch: int
    rows: list[list[int]]


class Trainer:
    """Holds what a run needs between steps.

    Args:
        run: prepared data, target and draft.
        signals: the first signal head, or None for a plain draft.
        accelerator: accelerate's.
        engine: its name (`training.engine`).
        out: folder for the log and the checkpoints.
    """

    def __init__(
        self,
        run: Run,
        signals: StandardisedSignals | None,
        accelerator: Any,
        engine: str,
        out: Path,
    ) -> None:
        self.run, self.accelerator, self.engine, self.out = run, accelerator, engine, out
        config = run.config
        self.config: TrainConfig = config
        torch.manual_seed(config.seed)
        self.model = DraftModel(
            run.draft, config.token, config.signals, bf16=config.precision == "bf16"
        )
        self.signals: SignalTrainer | None = None
        if signals is not None:
            self.signals = SignalTrainer(
                signals, config.signals, config.balance, config.optim, accelerator.device
            )
        o = config.optim
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        draft = {"name": "draft", "params": parameters, "weight_decay": o.weight_decay}
        self.optimiser = GroupClippedAdamW(
            [draft | {"clip": o.clip}], lr=o.lr, betas=o.betas, sharded=engine in SHARDED
        )
        configure_deepspeed(accelerator, config.batch)
        self.wrapped, self.prepared = accelerator.prepare(self.model, self.optimiser)
        check_wrapper(engine, self.wrapped)
        self.average: WeightAverage | None = None
        if o.ema is not None:
            heads = [] if self.signals is None else [*self.signals.signals.head.parameters()]
            self.average = WeightAverage([*parameters, *heads], o.ema)
        self.lengths = [len(e) for e in run.examples]
        split = len(self.lengths) - run.held_out
        self.held_out = validation_rows(
            self.lengths, range(split, len(self.lengths)), config.batch.row_length
        )
        per_epoch = len(self._epoch(0))
        self.total = per_epoch * config.optim.epochs
        if config.optim.max_steps is not None:
            self.total = min(self.total, config.optim.max_steps)
        self.step = 0
        self.best: dict[str, Any] | None = None

    # -- the plan -------------------------------------------------------------------------------

    def _epoch(self, epoch: int) -> list[list[list[int]]]:
        batch = self.config.batch
        return epoch_batches(
            self.lengths[: len(self.lengths) - self.run.held_out],
            capacity=batch.row_length,
            rows=batch.rows,
            seed=self.config.seed,
            epoch=epoch,
        )

    def plan(self) -> Iterator[Step]:
        """Steps from the current one to the last; a function of seed and step alone."""
        number = 0
        for epoch in range(self.config.optim.epochs):
            for rows in self._epoch(epoch):
                if number >= self.total:
                    return
                if number >= self.step:
                    yield Step(number, epoch, rows)
                number += 1

    def counts(self, rows: list[list[int]]) -> Counts:
        """Divisors over the whole global batch, known to every process without asking."""
        steps = self.config.token.ttt_steps
        tokens = [0.0] * steps
        weight = 0.0
        for row in rows:
            for i in row:
                example = self.run.examples[i]
                for k, n in enumerate(example.token_counts(steps)):
                    tokens[k] += n
                weight += self._signal_weight(example)
        return Counts(tuple(tokens), weight)

    def _signal_weight(self, example: Example) -> float:
        if example.thinking is None or self.signals is None:
            return 0.0
        weight = self.config.signals.boundary_weight
        return float(signal_weights(example.thinking, weight, self._reads_boundaries()).sum())

    def _reads_boundaries(self) -> bool:
        return self.signals is not None and self.signals.signals.head.kind == "memory"

    # -- one step -------------------------------------------------------------------------------

    def train(self, *, progress: bool = True) -> None:
        """Run to the last step. Deterministic: data order, dropout and sketches come from the seed
        and the step's number, so a resumed run goes on bit by bit."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.wrapped.train()
        is_main = self.accelerator.is_main_process
        bar = tqdm(
            total=self.total, initial=self.step, desc="train", disable=not (progress and is_main)
        )
        started, tokens = time.monotonic(), 0
        for step in self.plan():
            record = self.one_step(step)
            tokens += sum(self.lengths[i] for row in step.rows for i in row)
            self.step = step.number + 1
            bar.update()
            if (
                self.step % self.config.log_every == 0
                or self.step == self.total
                or step.number == 0
            ):
                seconds = max(time.monotonic() - started, 1e-9)
                self.write_log(record | {"tokens_per_s": round(tokens / seconds, 1)})
                bar.set_postfix(loss=f"{record['loss_token']:.3f}")
            if self._is_due(self.config.validation.every):
                validate_and_keep_best(self)
            every = self.config.checkpoint.every
            if every and self.step % every == 0 and self.step < self.total:
                self.save()
        bar.close()
        if self.best is not None and self.config.checkpoint.best is not None:
            load_best(self)
        if self.average is not None:
            self.average.apply()

    def _is_due(self, every: int) -> bool:
        return bool(every) and (self.step % every == 0 or self.step == self.total)

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Inside, the weights are what would be exported."""
        return nullcontext() if self.average is None else self.average.applied()

    def one_step(self, step: Step) -> dict[str, float]:
        """Forward, backward and update over the global batch; its log record."""
        config, accelerator = self.config, self.accelerator
        world, micro = accelerator.num_processes, config.batch.accumulation
        counts = self.counts(step.rows)
        parts = share(step.rows, world * micro)
        mine = parts[accelerator.process_index * micro : (accelerator.process_index + 1) * micro]
        torch.manual_seed((config.seed << 20) + step.number * world + accelerator.process_index)
        self.prepared.param_groups[0]["lr"] = self._learning_rate(step.number, config.optim.lr)
        signals = self.signals
        meter = None
        if signals is not None and signals.measures_at(step.number):
            meter = GradientMeter(step.number)
        sums = torch.zeros(4 + 2 * config.token.ttt_steps, device=accelerator.device)
        for rows in mine:
            batch = self.collate(rows)
            states = self.run.source.states(batch)
            with accelerator.accumulate(self.wrapped):
                out = self.wrapped(batch, states, counts)
                loss, found = out.loss, None
                if signals is not None:
                    found = signals.backward(
                        batch,
                        out.thinking,
                        counts.signals,
                        meter is not None,
                        share=1 / (world * micro),
                    )
                    if found.into_features is not None:
                        # adds the gradient of the signal losses to the draft's
                        loss = loss + (out.thinking * found.into_features).sum()
                # gradients are averaged over processes and micro batches, while the losses are
                # already divided by global counts: undo that average
                accelerator.backward(loss * world * micro)
                self.prepared.step()
                self.prepared.zero_grad()
            sums[0] += out.loss.detach()
            if found is not None:
                if meter is not None:
                    self._measure(meter, found.gradients * world, found.inputs)
                sums[1:4] += found.losses
            sums[4:] += torch.cat([out.per_step, out.matches])
        sums = accelerator.reduce(sums, "sum")
        self._stop_if_bad(sums, step)
        if signals is not None:
            signals.step(self._learning_rate(step.number, config.signals.lr), meter)
        if self.average is not None:
            self.average.update()
        return self._record(step, sums)

    def collate(self, rows: list[list[int]]) -> Batch:
        """Packed rows as tensors on this process's device."""
        return collate(
            self.run.examples,
            rows,
            boundary_weight=self.config.signals.boundary_weight,
            boundaries_only=self._reads_boundaries(),
        ).to(self.accelerator.device)

    def _measure(self, meter: GradientMeter, signals: Tensor, inputs: Tensor) -> None:
        """Add a micro batch's gradients, after its backward pass."""
        gradient, read = self.model.fc_gradient, self.model.fc_inputs
        if gradient is not None and read is not None:
            # this gradient holds the factor `world` of the loss already
            gradient, read = gradient.flatten(0, 1), read.flatten(0, 1)
        meter.add(signals, inputs, gradient, read)
        self.model.fc_gradient = self.model.fc_inputs = None

    def _stop_if_bad(self, sums: Tensor, step: Step) -> None:
        if bool(torch.isfinite(sums).all()):
            return
        ids = [self.run.examples[i].id for row in step.rows for i in row]
        path = self.out / "bad_batch.json"
        if self.accelerator.is_main_process:
            write_json(path, {"step": step.number, "epoch": step.epoch, "traces": ids})
        raise NonFiniteLossError(
            f"the loss is not finite at step {step.number}; the ids of its {len(ids)} traces are "
            f"in {path}. Look at them with `specexit data inspect`, or lower optim.lr "
            f"({self.config.optim.lr})"
        )

    def _learning_rate(self, step: int, peak: float) -> float:
        o = self.config.optim
        return learning_rate(
            step,
            total=self.total,
            warmup=o.warmup_steps,
            peak=peak,
            floor_ratio=o.min_lr_ratio,
        )

    # -- log and checkpoints --------------------------------------------------------------------

    def _record(self, step: Step, sums: Tensor) -> dict[str, float]:
        steps = self.config.token.ttt_steps
        values = sums.tolist()
        record: dict[str, float] = {
            "step": step.number + 1,
            "epoch": step.epoch,
            "loss_token": values[0],
        }
        record |= {f"loss_{n}": v for n, v in zip(TASKS, values[1:4], strict=True)}
        record |= {f"loss_token_{k}": values[4 + k] for k in range(steps)}
        record |= {f"match_{k}": values[4 + steps + k] for k in range(steps)}
        record |= {f"clip_norm_{n}": v for n, v in self.optimiser.last_norms.items()}
        record["lr_draft"] = self.prepared.param_groups[0]["lr"]
        if self.signals is not None:
            record |= self.signals.balancer.report()
            norms = self.signals.optimiser.last_norms
            record |= {f"clip_norm_{n}": v for n, v in norms.items()}
            record["lr_signals"] = self.signals.optimiser.param_groups[0]["lr"]
        return record

    def write_log(self, record: dict[str, float]) -> None:
        """Append to log.jsonl, and to the tracker."""
        if self.accelerator.is_main_process:
            with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self.accelerator.log(record, step=int(record["step"]))

    def save(self) -> None:
        """Write a checkpoint to resume from."""
        save_checkpoint(self)
