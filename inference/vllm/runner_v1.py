"""The exit inside Model Runner V1 (`vllm.v1.worker.gpu_model_runner`, GPU and CPU).

A mixin on the runner that vLLM built: it watches requests come and go, and lets `Session` edit the
accepted tokens between rejection sampling and everything that follows (logprobs, drafting,
bookkeeping). To vLLM an exit looks like a draft rejected at that row, with the think end as the
recovered token.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import Tensor

from inference.vllm import head, mtp_features, record, seams
from inference.vllm.exit_step import StepResult
from inference.vllm.recorded_output import RecordedOutput
from inference.vllm.session import Session

logger = logging.getLogger(__name__)

ATTRIBUTES = (
    "requests",
    "input_batch",
    "discard_request_mask",
    "input_ids",
    "query_start_loc",
    "max_num_reqs",
    "use_async_scheduling",
    "rejection_sampler",
    "vllm_config",
    "device",
)


class SpecExitRunnerV1:
    """Mixed in before the runner's own class (`worker.mix_in`)."""

    specexit: Session
    _specexit_step: Any = None  # what `execute_model` left for this step
    _specexit_result: StepResult | None = None
    _specexit_changed = False

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load target and draft, then the signal head."""
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        this: Any = self
        seams.check_attributes(self, ATTRIBUTES)
        loaded = head.load(this.vllm_config, this.device)
        self._specexit_norm = head.feature_norm(this.drafter.model)
        self._specexit_mtp = head.mtp_reader(loaded, this.drafter.model)
        self.specexit = Session(
            loaded,
            this.max_num_reqs,
            this.device,
            on_host=this.device.type == "cpu"
            and loaded.settings.step == "auto"
            and self._specexit_mtp is None,
            normalise=self._specexit_norm,
        )
        self._specexit_columns = torch.arange(this.num_spec_tokens + 1, device=this.device)
        sampler = this.rejection_sampler
        inner = sampler._get_logprobs_tensors

        def exit_first(*args: Any, **kwargs: Any) -> Any:
            """Edit the accepted ids before their logprobs are taken."""
            ids = kwargs["sampled_token_ids"] if "sampled_token_ids" in kwargs else args[-1]
            metadata = kwargs["metadata"] if "metadata" in kwargs else args[1]
            self._specexit_edit(ids, metadata)
            return inner(*args, **kwargs)

        sampler._get_logprobs_tensors = exit_first

    def _update_states(self, scheduler_output: Any) -> Any:
        """Follow the requests that finish, are preempted, arrive or resume."""
        session, this = self.specexit, self
        session.leave(scheduler_output.finished_req_ids)
        session.park(scheduler_output.preempted_req_ids or ())
        result = super()._update_states(scheduler_output)  # type: ignore[misc]
        requests: Any = this.requests  # type: ignore[attr-defined]
        entering = [r.req_id for r in scheduler_output.scheduled_new_reqs]
        entering += scheduler_output.scheduled_cached_reqs.resumed_req_ids
        for request_id in entering:
            request = requests[request_id]
            session.enter(
                request_id,
                request.prompt_token_ids or (),
                request.output_token_ids,
                request.num_computed_tokens,
                request.sampling_params,
            )
        session.flush()
        return result

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Keep the step's features for `_sample`, and attach what happened to the output."""
        this: Any = self
        self._specexit_step = this.execute_model_state
        self._specexit_result = None
        try:
            output = super().sample_tokens(grammar_output)  # type: ignore[misc]
        finally:
            self._specexit_step = None
        return self._specexit_attach(output)

    def _sample(self, logits: Tensor, spec_decode_metadata: Any) -> Any:
        """Sample, then end the thinking where the policy says so."""
        output = super()._sample(logits, spec_decode_metadata)  # type: ignore[misc]
        self._specexit_edit(output.sampled_token_ids, spec_decode_metadata)
        return output

    def _specexit_edit(self, sampled: Tensor, metadata: Any) -> None:
        """Run the exit rule on a step's accepted ids `[B, W] int32`, in place, once."""
        context, session, this = self._specexit_step, self.specexit, self
        if context is None or metadata is None:
            return
        self._specexit_step = None
        request_ids: list[str] = this.input_batch.req_ids  # type: ignore[attr-defined]
        if not session.watches(request_ids):
            session.journal.counters["steps_skipped"] += 1
            return
        began = time.perf_counter()
        self._specexit_replay(context, request_ids)
        if session.host is not None:
            self._specexit_edit_on_host(context, request_ids, sampled, metadata)
        else:
            self._specexit_edit_tensors(context, request_ids, sampled, metadata)
        session.journal.counters["steps"] += 1
        session.journal.counters["step_microseconds"] += int((time.perf_counter() - began) * 1e6)

    def _specexit_edit_on_host(
        self, context: Any, request_ids: list[str], sampled: Tensor, metadata: Any
    ) -> None:
        """On a CPU: reading a tensor costs nothing, so the rule runs in plain Python."""
        this: Any = self
        ends = this.query_start_loc.np
        discarded = this.discard_request_mask.np
        rows = [
            -1 if discarded[b] else int(ends[b + 1]) - 1 - drafts
            for b, drafts in enumerate(metadata.num_draft_tokens)
        ]
        edits = self.specexit.step_on_host(
            request_ids, sampled.tolist(), rows, context.aux_hidden_states
        )
        for b, edit in edits:
            sampled[b, edit.kept] = edit.token
            sampled[b, edit.kept + 1 :] = -1
        self._specexit_changed = True

    def _specexit_edit_tensors(
        self, context: Any, request_ids: list[str], sampled: Tensor, metadata: Any
    ) -> None:
        """On the device, without a synchronisation."""
        session, this = self.specexit, self
        B, W = sampled.shape
        ends = metadata.cu_num_sampled_tokens
        starts = torch.zeros_like(ends)
        starts[1:] = ends[:-1]
        rows = (starts[:, None] + self._specexit_columns[:W]).clamp_max(
            metadata.logits_indices.shape[0] - 1
        )
        at = metadata.logits_indices[rows].long()
        discarded = this.discard_request_mask.gpu[:B]  # type: ignore[attr-defined]
        count = torch.where(discarded, 0, (sampled != -1).sum(1))
        inputs = this.input_ids.gpu[at].long()  # type: ignore[attr-defined]
        if self._specexit_mtp is None:
            features: Tensor = torch.cat(context.aux_hidden_states, -1)
            z = session.state.head.project(self._specexit_normalise(features[at]))
            result = session.step(request_ids, inputs, sampled.long(), count, z)
        else:
            slots = session.slots(request_ids)
            mtp = mtp_features.project_step(
                self._specexit_mtp,
                session.state,
                slots,
                mtp_features.target_hidden(this.model, context.hidden_states),  # type: ignore[attr-defined]
                at,
                this.query_start_loc.gpu[:B],  # type: ignore[attr-defined]
                inputs,
                sampled.long().clamp_min(0),
                self._specexit_following(context, request_ids),
            )
            result = session.step(request_ids, inputs, sampled.long(), count, mtp.inputs)
            mtp_features.keep_last(session.state, slots, mtp, result.num_sampled)
        # a chunk of a prompt is sampled too and thrown away later: leave its row as it is
        sampled.copy_(torch.where((count > 0)[:, None], result.sampled.to(sampled.dtype), sampled))
        self._specexit_result = result

    def _specexit_following(self, context: Any, request_ids: list[str]) -> Tensor:
        """`[B] int64`: the next prompt id of requests that do not sample yet, -1 for the others."""
        this: Any = self
        following = torch.full((len(request_ids),), -1)
        for b in this.discard_request_mask.np[: len(request_ids)].nonzero()[0].tolist():
            scheduled = context.scheduler_output.num_scheduled_tokens[request_ids[b]]
            at = int(this.input_batch.num_computed_tokens_cpu[b]) + scheduled
            following[b] = this.requests[request_ids[b]].get_token_id(at)
        return following.to(this.device, non_blocking=True)

    def _specexit_normalise(self, features: Tensor) -> Tensor:
        return features if self._specexit_norm is None else self._specexit_norm(features)

    def _specexit_replay(self, context: Any, request_ids: list[str]) -> None:
        """Advance over the thinking tokens of prompts that this step has computed."""
        this: Any = self
        session = self.specexit
        scheduled = context.scheduler_output.num_scheduled_tokens
        for b, request_id in enumerate(request_ids):
            first = int(this.input_batch.num_computed_tokens_cpu[b])
            rows = session.replay_rows(request_id, first, scheduled[request_id])
            if rows is None:
                continue
            begin = int(this.query_start_loc.np[b])
            part = slice(begin + rows.start, begin + rows.stop)
            if self._specexit_mtp is None:
                features = torch.cat([h[part] for h in context.aux_hidden_states], -1)
                features = self._specexit_normalise(features)
            else:
                hidden = mtp_features.target_hidden(this.model, context.hidden_states)
                ids = session.replayed_ids(request_id, first, rows)
                features = self._specexit_mtp(hidden[part], torch.tensor(ids, device=hidden.device))
            session.replay(request_id, first, rows, features)

    def _specexit_attach(self, output: Any) -> Any:
        """Give the step's events to the host and the changed records to the scheduler."""
        this: Any = self
        result = self._specexit_result
        session = self.specexit
        if self._specexit_changed:
            self._specexit_changed = False
            # host path: all is known already; an async output wraps the one for the scheduler
            session.report(getattr(output, "_model_runner_output", output))
        if result is None:
            return output
        request_ids = list(this.input_batch.req_ids)
        if session.journal.keep_signals:
            session.journal.keep(request_ids, result)
        packed = record.pack(result, len(session.loaded.think.end_ids))
        outcome = session.outcome(request_ids)
        if not hasattr(output, "get_output"):
            session.note(outcome, packed.tolist(), output)
            return output
        host, copied = packed.to("cpu", non_blocking=True), None
        if packed.device.type != "cpu":
            copied = torch.cuda.Event()
            copied.record()
        return RecordedOutput(output, session, outcome, host, copied)
