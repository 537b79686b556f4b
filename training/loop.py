"""The joint training loop: draft and first signal head, one optimiser step at a time."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from specexit.errors import SpecExitError
from specexit.files import write_json
from training.balance import TASKS, Balancer, gradient_norms
from training.batch import Batch, collate
from training.config import TrainConfig
from training.engine import check_wrapper
from training.examples import Example, signal_weights
from training.model import Counts, StandardisedSignals, StepOutput, TrainModel
from training.optimiser import GroupClippedAdamW, learning_rate
from training.packing import epoch_batches, share
from training.setup import Run

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
        self.model = TrainModel(
            run.draft,
            signals,
            config.token,
            freeze_draft=config.draft.freeze,
            bf16=config.precision == "bf16",
        )
        self.balancer = Balancer(config.balance).to(accelerator.device)
        self.optimiser = GroupClippedAdamW(
            self._groups(),
            lr=config.optim.lr,
            betas=config.optim.betas,
            sharded=engine.startswith("zero"),
        )
        self._configure_deepspeed()
        self.wrapped, self.prepared = accelerator.prepare(self.model, self.optimiser)
        check_wrapper(engine, self.wrapped)
        lengths = [len(e) for e in run.examples]
        per_epoch = len(self._epoch(lengths, 0))
        self.lengths = lengths
        self.total = per_epoch * config.optim.epochs
        if config.optim.max_steps is not None:
            self.total = min(self.total, config.optim.max_steps)
        self.step = 0
        self.gathered_signals: StandardisedSignals | None = None

    # -- the plan -------------------------------------------------------------------------------

    def _epoch(self, lengths: list[int], epoch: int) -> list[list[list[int]]]:
        batch = self.config.batch
        return epoch_batches(
            lengths,
            capacity=batch.max_length,
            rows=batch.rows,
            seed=self.config.seed,
            epoch=epoch,
        )

    def plan(self) -> Iterator[Step]:
        """Steps from the current one to the last; a function of seed and step alone."""
        number = 0
        for epoch in range(self.config.optim.epochs):
            for rows in self._epoch(self.lengths, epoch):
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
        if example.thinking is None or self.model.signals is None:
            return 0.0
        settings = self.config.signals
        only = self.model.signals.head.kind == "memory"
        return float(signal_weights(example.thinking, settings.boundary_weight, only).sum())

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
            every = self.config.checkpoint.every
            if every and self.step % every == 0 and self.step < self.total:
                self.save()
        bar.close()

    def one_step(self, step: Step) -> dict[str, float]:
        """Forward, backward and update over the global batch; its log record."""
        config, accelerator = self.config, self.accelerator
        world, micro = accelerator.num_processes, config.batch.accumulation
        counts = self.counts(step.rows)
        parts = share(step.rows, world * micro)
        mine = parts[accelerator.process_index * micro : (accelerator.process_index + 1) * micro]
        self._set_learning_rate(step.number)
        torch.manual_seed((config.seed << 20) + step.number * world + accelerator.process_index)
        sums = torch.zeros(4 + 2 * config.token.ttt_steps, device=accelerator.device)
        for rows in mine:
            batch = self._collate(rows)
            states = self.run.source.states(batch)
            with accelerator.accumulate(self.wrapped):
                out = self.wrapped(batch, states, counts)
                total, measured = self._combine(out)
                # gradients are averaged over processes and micro batches, while the losses are
                # already divided by global counts: undo that average
                accelerator.backward(total * world * micro)
                self._stop_if_bad(total, step, rows)
                if measured is not None:
                    self._measure(out, measured, step.number, world * micro)
                self.prepared.step()
                self.prepared.zero_grad()
            sums[0] += out.token.detach()
            sums[1:4] += out.signals.detach()
            sums[4:] += torch.cat([out.per_step, out.matches])
        sums = accelerator.reduce(sums, "sum")
        return self._record(step, sums)

    def _collate(self, rows: list[list[int]]) -> Batch:
        signals = self.model.signals
        return collate(
            self.run.examples,
            rows,
            boundary_weight=self.config.signals.boundary_weight,
            boundaries_only=signals is not None and signals.head.kind == "memory",
        ).to(self.accelerator.device)

    def _combine(self, out: StepOutput) -> tuple[Tensor, Tensor | None]:
        """The loss to differentiate, and `dL_i/dz [3, S, D]` when the norms are due."""
        if self.model.signals is None:
            return out.token, None
        scale = out.signals.new_tensor(self.config.balance.loss_scale)
        losses = out.signals * scale
        measured = None
        if self.step % self.config.balance.every == 0 and self.config.balance.mode != "uncertainty":
            if out.z.requires_grad and len(out.z):
                measured = torch.stack(
                    [torch.autograd.grad(one, out.z, retain_graph=True)[0] for one in losses]
                )
            else:
                measured = out.z.new_zeros(3, *out.z.shape)
        return out.token + self.balancer.combine(losses), measured

    def _measure(self, out: StepOutput, signals: Tensor, step: int, factor: int) -> None:
        model = self.model
        token_gradient, token_inputs = model.fc_gradient, model.fc_inputs
        if token_gradient is not None and token_inputs is not None:
            token_gradient = token_gradient.flatten(0, 1)
            token_inputs = token_inputs.flatten(0, 1)
        inputs = out.signal_inputs
        if signals.shape[1] == 0:
            width = model.signals.head.projection.in_features  # type: ignore[union-attr]
            rows = model.signals.head.rows  # type: ignore[union-attr]
            inputs, signals = inputs.new_zeros(0, width), signals.new_zeros(3, 0, rows)
        world = self.accelerator.num_processes
        norms = gradient_norms(signals * world, inputs, token_gradient, token_inputs, step)
        norms.token = norms.token / (factor / world) if token_gradient is not None else norms.token
        self.balancer.update(norms)
        model.fc_gradient = model.fc_inputs = None

    def _stop_if_bad(self, total: Tensor, step: Step, rows: list[list[int]]) -> None:
        bad = (~torch.isfinite(total.detach())).float().reshape(1)
        bad = self.accelerator.reduce(bad, "sum")
        if not bool(bad.any()):
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

    def _set_learning_rate(self, step: int) -> None:
        o, s = self.config.optim, self.config.signals
        peaks = {"draft": o.lr, "signals": s.lr, "balance": s.lr}
        for group in self.prepared.param_groups:
            group["lr"] = learning_rate(
                step,
                total=self.total,
                warmup=o.warmup_steps,
                peak=peaks[group["name"]],
                floor_ratio=o.min_lr_ratio,
            )

    def _groups(self) -> list[dict[str, Any]]:
        o, s = self.config.optim, self.config.signals
        draft = [p for p in self.model.draft.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = []
        if draft:
            groups.append(
                {"name": "draft", "params": draft, "weight_decay": o.weight_decay, "clip": o.clip}
            )
        if self.model.signals is not None:
            parameters = list(self.model.signals.head.parameters())
            decay = s.weight_decay
            groups.append(
                {"name": "signals", "params": parameters, "weight_decay": decay, "clip": o.clip}
            )
        if list(self.balancer.parameters()):
            learned = list(self.balancer.parameters())
            groups.append(
                {"name": "balance", "params": learned, "weight_decay": 0.0, "clip": o.clip}
            )
        return groups

    def _configure_deepspeed(self) -> None:
        plugin = getattr(self.accelerator.state, "deepspeed_plugin", None)
        if plugin is None:
            return
        world, micro = self.accelerator.num_processes, self.config.batch.accumulation
        settings = plugin.deepspeed_config
        settings["train_micro_batch_size_per_gpu"] = self.config.batch.rows // (world * micro)
        settings["gradient_accumulation_steps"] = micro
        settings["gradient_clipping"] = 0.0  # groups are clipped apart, by the optimiser
        settings["zero_allow_untested_optimizer"] = True

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
        if self.model.signals is not None:
            record |= self.balancer.report()
        norms = self.optimiser.last_norms
        record |= {f"clip_norm_{name}": value for name, value in norms.items()}
        record |= {f"lr_{g['name']}": g["lr"] for g in self.prepared.param_groups}
        return record

    def write_log(self, record: dict[str, float]) -> None:
        """Append to log.jsonl, and to the tracker."""
        if self.accelerator.is_main_process:
            with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self.accelerator.log(record, step=int(record["step"]))

    def save(self) -> None:
        """Write a checkpoint to resume from."""
        from training.resume import save_checkpoint

        save_checkpoint(self)
