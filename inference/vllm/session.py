"""The requests of one worker: who sits in which slot, and what the host knows about them.

Shared by the runners. A runner says which requests enter, leave or are preempted, hands over the
features of a step, and gets the step's outcome back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from inference.vllm import exit_prompt
from inference.vllm.admission import Request, admit, effective_policy
from inference.vllm.exit_host import Edit, HostExit
from inference.vllm.exit_kernel import step_for
from inference.vllm.exit_plan import make_plan
from inference.vllm.exit_state import Admission, ExitState
from inference.vllm.exit_step import StepInputs, StepResult
from inference.vllm.head import LoadedHead
from inference.vllm.host_signals import Row
from inference.vllm.record import Journal, unpack


@dataclass(frozen=True)
class Outcome:
    """Which step, counted from 1, and its batch."""

    step: int
    request_ids: Sequence[str]


class Session:
    """All requests of a worker.

    Args:
        loaded: the head and its settings.
        slots: the most requests that run at once.
        device: of the model.
        on_host: decide with `HostExit` (CPU); otherwise with `ExitState` on the device.
        normalise: for `on_host`, what the draft does to its features before `fc`.
    """

    def __init__(
        self,
        loaded: LoadedHead,
        slots: int,
        device: torch.device,
        *,
        on_host: bool = False,
        normalise: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.loaded = loaded
        self.host: HostExit | None = None
        if on_host:
            self.host = HostExit(
                slots,
                loaded.head,
                loaded.think,
                loaded.splitter,
                normalise=normalise,
                keep_raw=loaded.settings.record,
            )
        # an MTP draft's features of a token come from the row of the token before
        self.lag = int(loaded.metadata.method == "mtp")
        self.state = ExitState(
            slots, loaded.head, loaded.think, loaded.splitter, device, waits=bool(self.lag)
        )
        self._step = step_for(device)
        self.journal = Journal(keep_signals=loaded.settings.record)
        self._free = list(range(slots - 1, -1, -1))
        self._requests: dict[str, Request] = {}
        self._entering: list[Admission] = []
        self._rows: tuple[list[str], Tensor] | None = None
        self._steps = 0  # whose outcome is on its way to the host

    # Requests come and go.

    def leave(self, request_ids: Iterable[str]) -> None:
        """Forget requests that finished or were aborted."""
        for request_id in request_ids:
            request = self._requests.pop(request_id, None)
            if request is None:
                continue
            if request.slot >= 0:
                self._vacate(request)
            elif isinstance(request.saved, Row):
                self.journal.store(request_id, request.saved.raw, request.saved.steps)
            self.journal.close(request_id)

    def park(self, request_ids: Iterable[str]) -> None:
        """Free the slots of preempted requests, keeping their state."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None or request.slot < 0:
                continue
            if request.over:
                self._vacate(request)
                continue
            request.saved = (self.host or self.state).snapshot(request.slot)
            self._free.append(request.slot)
            request.slot = -1

    def _vacate(self, request: Request) -> None:
        """Free a slot whose state nobody needs any more (its raw signals are kept)."""
        if self.host is not None:
            row = self.host.release(request.slot)
            if row is not None and row.raw:
                self.journal.store(request.request_id, row.raw, row.steps)
        self._free.append(request.slot)
        request.slot = -1

    def enter(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        computed: int,
        params: Any,
        slot: int | None = None,
    ) -> None:
        """Give a new or resumed request a slot; `flush` fills it.

        Args:
            computed: tokens whose rows will not be computed (prefix cache).
            params: the request's `SamplingParams`, if it has any.
            slot: the runner's own row for the request; any free one where it has none.
        """
        request = self._requests.get(request_id)
        if request is None:
            policy = effective_policy(self.loaded, params)
            plan = make_plan(policy, self.loaded.think.end_ids, self.loaded.encode)
            request = Request(request_id, plan, policy, over=not plan.enabled)
            self._requests[request_id] = request
            if plan.enabled:
                self.journal.open(request_id)
        request.since = self._steps
        if request.injected and request.injected[-1] >= len(output_ids):
            # an asynchronous scheduler drops what was in flight when it preempts
            request.injected = [p for p in request.injected if p < len(output_ids)]
            request.over = False
            self.journal.take_back(request_id, len(output_ids))
        if slot is not None and request.slot != slot:
            if request.slot >= 0:
                self._free.append(request.slot)
            self._free.remove(slot)
            request.slot = slot
        if request.slot < 0:
            request.slot = self._free.pop()
        self._rows = None
        if request.over:
            if self.host is None:  # whoever was in this slot before may have been thinking
                idle = Admission(
                    request.slot, request.plan, False, False, len(output_ids), 0, 0, (), closed=True
                )
                self._entering.append(idle)
            return
        admission, missing = admit(self.loaded, request, prompt_ids, output_ids, computed, self.lag)
        if missing:
            self.journal.mark_partial(request_id, missing)
        self._entering.append(admission)

    def flush(self) -> None:
        """Fill the slots of the requests that entered since the last call."""
        if self._entering:
            entering, self._entering = self._entering, []
            (self.host or self.state).admit(entering)

    # One step.

    def watches(self, request_ids: Sequence[str]) -> bool:
        """Whether any of the batch's requests needs a step."""
        requests = self._requests
        return any(not requests[r].over for r in request_ids)

    def slots(self, request_ids: list[str]) -> Tensor:
        """`[B] int64` slots of a batch, copied to the device only when the batch changes."""
        if self._rows is None or self._rows[0] != request_ids:
            slots = [self._requests[r].slot for r in request_ids]
            self._rows = (list(request_ids), self.state._to_device(slots, torch.int64))
        return self._rows[1]

    def replay_rows(self, request_id: str, first: int, count: int) -> range | None:
        """Which of a prefill chunk's rows are thinking tokens of the past.

        Args:
            first: index of the chunk's first token among the request's ids.
            count: tokens of the chunk.

        Returns:
            Offsets into the chunk, or None.
        """
        replay = self._requests[request_id].replay
        if replay is None:
            return None
        first += self.lag
        begin, end = max(replay.start, first), min(replay.stop, first + count)
        return range(begin - first, end - first) if begin < end else None

    def replayed_ids(self, request_id: str, first: int, rows: range) -> list[int]:
        """Ids of the tokens whose features `rows` give."""
        ids, first = self._requests[request_id].ids, first + self.lag
        return list(ids[first + rows.start : first + rows.stop])

    def replay(self, request_id: str, first: int, rows: range, features: Tensor) -> None:
        """Advance a request over thinking tokens that its prefill has computed.

        Args:
            first: index of the chunk's first token among the request's ids.
            rows: what `replay_rows` gave.
            features: `[len(rows), F]` of those rows.
        """
        request = self._requests[request_id]
        assert request.replay is not None
        begin, end = (first + self.lag + r for r in (rows.start, rows.stop))
        ids = torch.tensor(request.ids[max(begin - 1, 0) : end + 1])
        own, before = ids[1 : 1 + len(rows)], ids[: len(rows)]
        if begin == 0:
            own, before = ids[: len(rows)], torch.cat([ids[:1] * 0 + self.state.no_token, ids])
        after = torch.tensor(request.ids[begin + 1 : end + 1])
        splits = self.loaded.splitter.mask(own, before[: len(rows)])
        if request.plan.discourse:
            splits = splits | self.loaded.splitter.is_connective[after]
        if self.host is not None:
            self.host.replay(request.slot, features, splits.tolist())
        else:
            z = self.state.head.project(features)
            exit_prompt.advance(self.state, request.slot, z, splits.tolist())
        request.replay = range(end, request.replay.stop)
        if not request.replay:
            request.replay, request.ids = None, ()

    def step(
        self,
        request_ids: list[str],
        inputs: Tensor,
        sampled: Tensor,
        num_sampled: Tensor,
        z: Tensor,
    ) -> StepResult:
        """Run the exit rule on a batch; see `exit_step.step`. `z [B, W, D] float32`."""
        return self._step(
            self.state, StepInputs(self.slots(request_ids), inputs, sampled, num_sampled, z)
        )

    def step_on_host(
        self,
        request_ids: Sequence[str],
        sampled: Sequence[Sequence[int]],
        rows: Sequence[int],
        layers: Sequence[Tensor],
    ) -> list[tuple[int, Edit]]:
        """The exit rule on a batch, with `HostExit`.

        Args:
            sampled: accepted ids of each request, `-1` after them.
            rows: row of x_0 among the step's inputs; -1 where the request does not sample.
            layers: features of all inputs, `[N, F_l]` a layer.

        Returns:
            Which rows to edit, and how.
        """
        assert self.host is not None
        edits = []
        for b, request_id in enumerate(request_ids):
            request = self._requests[request_id]
            if request.over or rows[b] < 0:
                continue
            accepted = sampled[b]
            if accepted[-1] < 0:
                accepted = accepted[: accepted.index(-1)]
            edit, event = self.host.step(request.slot, accepted, layers, rows[b])
            if edit is not None:
                edits.append((b, edit))
                row = self.host.rows[request.slot]
                written = row is not None and row.written >= len(request.plan.forced)
                request.over = written and not request.plan.reenters
            if event is not None:
                if event.kind == "injected":
                    request.injected.append(event.position)
                self.journal.note(request_id, event)
        return edits

    def outcome(self, request_ids: Sequence[str]) -> Outcome:
        """A step's ticket: hand it back to `note` with what the step did."""
        self._steps += 1
        return Outcome(self._steps, request_ids)

    def note(self, outcome: Outcome, rows: list[list[float]], target: Any) -> None:
        """Take the host's copy of what a step did; what changed goes onto an output.

        Args:
            rows: `record.pack`, on the host.
            target: the output that reaches the scheduler.
        """
        events = unpack(rows, len(self.loaded.think.end_ids))
        for request_id, event in zip(outcome.request_ids, events, strict=True):
            request = self._requests.get(request_id)
            if event is None or request is None or request.since >= outcome.step:
                continue
            if event.kind == "injected":
                request.injected.append(event.position)
                done = len(request.plan.forced) == 1 and not request.plan.reenters
                request.over = request.over or done
            self.journal.note(request_id, event)
        self.report(target)

    def report(self, target: Any) -> None:
        """Put the records that changed, if any, onto the output that reaches the scheduler."""
        changes = self.journal.take_changes()
        if changes:
            target.specexit = changes

    def usage(self) -> dict[str, int]:
        """Slots in use, requests known, and preempted ones that wait with their state."""
        requests = self._requests.values()
        return {
            "slots_used": self.state.counts.shape[0] - len(self._free),
            "requests_known": len(self._requests),
            "snapshots": sum(r.saved is not None for r in requests),
        }
