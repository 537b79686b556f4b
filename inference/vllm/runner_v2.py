"""The exit inside Model Runner V2 (`vllm.v1.worker.gpu.model_runner`, the default on GPUs).

A mixin on the runner that vLLM built. Slots are the runner's own request rows, so the step's
`idx_mapping` is used as it is; the rows of request b are
`logits_indices[cu_num_logits[b] : cu_num_logits[b + 1]]`. Everything between sampling and the
bookkeeping stays on the device: what the exit drops is added to `num_rejected`, so that to vLLM it
looks like a draft rejected at that row, with the think end as the recovered token.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import Tensor

from inference.vllm import exit_kernel, head, mtp_features, record, seams, v2_logprobs
from inference.vllm.exit_step import StepInputs, StepResult
from inference.vllm.mtp_features import MtpFeatures, MtpStep
from inference.vllm.recorded_output import RecordedOutput
from inference.vllm.session import Session
from specexit.errors import ConfigError

logger = logging.getLogger(__name__)

ATTRIBUTES = (
    "speculator",
    "req_states",
    "sampler",
    "rejection_sampler",
    "model_state",
    "model_config",
    "max_num_reqs",
    "num_speculative_steps",
    "output_copy_stream",
    "main_stream",
    "vllm_config",
    "device",
)


class SpecExitRunnerV2:
    """Mixed in before the runner's own class (`worker.mix_in`)."""

    specexit: Session
    _specexit_mtp: MtpFeatures | None
    _specexit_context: Any = None  # what `execute_model` left for this step
    _specexit_outcome: tuple[Tensor, Tensor] | None = None  # a step's record: device, host

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load target and draft, then the signal head."""
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        this: Any = self
        seams.check_attributes(self, ATTRIBUTES)
        check_runner(self)
        loaded = head.load(this.vllm_config, this.device)
        self.specexit = Session(loaded, this.max_num_reqs, this.device)
        self._specexit_norm = head.feature_norm(this.speculator.model)
        self._specexit_mtp = head.mtp_reader(loaded, this.speculator.model)
        self._specexit_step = exit_kernel.step_for(this.device)
        self._specexit_columns = torch.arange(this.num_speculative_steps + 1, device=this.device)
        self._specexit_logits = v2_logprobs.Kept(this.sampler, this.rejection_sampler)

    def finish_requests(self, scheduler_output: Any) -> None:
        """Forget the requests that finished, and keep the state of those that are preempted."""
        self.specexit.leave(scheduler_output.finished_req_ids)
        self.specexit.park(scheduler_output.preempted_req_ids or ())
        super().finish_requests(scheduler_output)  # type: ignore[misc]

    def add_requests(self, scheduler_output: Any) -> None:
        """Take in new requests; a preempted one comes back as new, with its outputs so far."""
        super().add_requests(scheduler_output)  # type: ignore[misc]
        session, this = self.specexit, self
        slots: dict[str, int] = this.req_states.req_id_to_index  # type: ignore[attr-defined]
        for new in scheduler_output.scheduled_new_reqs:
            session.enter(
                new.req_id,
                new.prefill_token_ids[: new.prompt_len],
                new.prefill_token_ids[new.prompt_len :],
                new.num_computed_tokens,
                new.sampling_params,
                slot=slots[new.req_id],
            )
        session.flush()

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Keep the step's features for `sample`, and attach what happened to the output."""
        this: Any = self
        self._specexit_context = this.execute_model_state
        self._specexit_outcome = None
        try:
            output = super().sample_tokens(grammar_output)  # type: ignore[misc]
        finally:
            self._specexit_context = None
        return self._specexit_attach(output)

    def sample(self, hidden_states: Tensor, input_batch: Any, grammar_output: Any) -> Any:
        """Sample, then end the thinking where the policy says so."""
        context, session = self._specexit_context, self.specexit
        watched = context is not None and session.watches(input_batch.req_ids)
        with self._specexit_logits.keeping(watched):
            output, sampled, rejected = super().sample(  # type: ignore[misc]
                hidden_states, input_batch, grammar_output
            )
            if not watched:
                session.journal.counters["steps_skipped"] += context is not None
                return output, sampled, rejected
            began = time.perf_counter()
            layers = context.aux_hidden_states
            if self._specexit_mtp is not None:
                this: Any = self
                layers = [mtp_features.target_hidden(this.model, hidden_states)]
            result = self._specexit_edit(layers, input_batch, output)
        self._specexit_copy(result)
        if session.journal.keep_signals:
            session.journal.keep(input_batch.req_ids, result)
        counters = session.journal.counters
        counters["steps"] += 1
        counters["step_microseconds"] += int((time.perf_counter() - began) * 1e6)
        return output, output.num_sampled, output.num_rejected

    def _specexit_edit(self, layers: list[Tensor], batch: Any, output: Any) -> StepResult:
        """Run the exit rule on a step's sampled ids and put the outcome into vLLM's output.

        `layers`: the target's states of all rows, `[N, H]` each.
        """
        state = self.specexit.state
        if batch.has_prefill:
            self._specexit_replay(layers, batch)
        rows = batch.logits_indices
        old, old_count = output.sampled_token_ids, output.num_sampled
        B, W = old.shape
        column = self._specexit_columns[:W]
        at = (batch.cu_num_logits[:B, None] + column).clamp_max(rows.shape[0] - 1)
        # what vLLM leaves at and after `num_sampled` is uninitialised memory
        sampled = torch.where(column < old_count[:, None], old, 0).long()
        inputs = batch.input_ids[rows].long().clamp_min(0)[at]
        slots = batch.idx_mapping.long()
        mtp: MtpStep | None = None
        if self._specexit_mtp is None:
            features = self._specexit_normalise(torch.cat([h[rows] for h in layers], -1))
            z = state.head.project(features)[at]
        else:
            following = self._specexit_following(batch, old_count)
            mtp = mtp_features.project_step(
                self._specexit_mtp,
                state,
                slots,
                layers[0],
                rows[at].long(),
                batch.query_start_loc[:B],
                inputs,
                sampled,
                following,
            )
            z = mtp.inputs
        result = self._specexit_step(state, StepInputs(slots, inputs, sampled, old_count.long(), z))
        if mtp is not None:
            mtp_features.keep_last(state, slots, mtp, result.num_sampled)
        count = result.num_sampled.to(old_count.dtype)
        output.sampled_token_ids = result.sampled.to(old.dtype)
        output.num_sampled = count
        output.num_rejected = output.num_rejected + (old_count - count)
        if output.logprobs_tensors is not None:
            last = (result.num_sampled - 1).clamp_min(0)[:, None]
            ids = result.sampled.gather(1, last)[:, 0]
            changed = (ids != sampled.gather(1, last)[:, 0]) & (count > 0)
            self._specexit_logits.patch(
                output.logprobs_tensors, at.gather(1, last)[:, 0], ids, changed
            )
        return result

    def _specexit_following(self, batch: Any, count: Tensor) -> Tensor | None:
        """`[B] int64`: the next prompt id of requests that do not sample yet, -1 for the others."""
        if not batch.has_prefill:
            return None
        this: Any = self
        known = this.req_states.next_prefill_tokens[0, batch.idx_mapping].long()
        return torch.where(count > 0, -1, known)

    def _specexit_normalise(self, features: Tensor) -> Tensor:
        return features if self._specexit_norm is None else self._specexit_norm(features)

    def _specexit_replay(self, layers: list[Tensor], batch: Any) -> None:
        """Advance over the thinking tokens of prompts that this step has computed."""
        session = self.specexit
        for b in batch.is_prefilling_np.nonzero()[0].tolist():
            request_id, first = batch.req_ids[b], int(batch.num_computed_tokens_np[b])
            rows = session.replay_rows(request_id, first, int(batch.num_scheduled_tokens[b]))
            if rows is None:
                continue
            begin = int(batch.query_start_loc_np[b])
            part = slice(begin + rows.start, begin + rows.stop)
            if self._specexit_mtp is None:
                features = self._specexit_normalise(torch.cat([h[part] for h in layers], -1))
            else:
                ids = session.replayed_ids(request_id, first, rows)
                tokens = torch.tensor(ids, device=layers[0].device)
                features = self._specexit_mtp(layers[0][part], tokens)
            session.replay(request_id, first, rows, features)

    def _specexit_copy(self, result: StepResult) -> None:
        """Start the record's copy to the host, ahead of vLLM's own on the same stream."""
        this: Any = self
        packed = record.pack(result, len(self.specexit.loaded.think.end_ids))
        this.output_copy_stream.wait_stream(this.main_stream)
        with torch.cuda.stream(this.output_copy_stream):
            host = packed.to("cpu", non_blocking=True)
        self._specexit_outcome = (packed, host)

    def _specexit_attach(self, output: Any) -> Any:
        """Let the output bring the step's record along, once its own copies have arrived."""
        outcome, session = self._specexit_outcome, self.specexit
        self._specexit_outcome = None
        if outcome is None:
            return output
        # vLLM's output waits for an event that it recorded after our copy
        request_ids = list(output.model_runner_output.req_ids)
        return RecordedOutput(output, session, session.outcome(request_ids), outcome[1])


def check_runner(runner: Any) -> None:
    """Refuse runner states in which the exit would be silently wrong.

    Raises:
        ConfigError: names the setting and its value.
    """
    new_tokens = getattr(runner.model_state, "num_new_sampled_tokens_per_step", 1)
    if new_tokens != 1:
        raise ConfigError(
            f"specexit: a target that samples {new_tokens} new tokens a step (a diffusion model) "
            "is not supported; serve it without --worker-cls inference.vllm.SpecExitWorker"
        )
    if getattr(runner, "batch_sharder", None) is not None:
        raise ConfigError(
            "specexit: enable_batch_sharded_sampling true is not supported; "
            "start with --no-enable-batch-sharded-sampling"
        )
