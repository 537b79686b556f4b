"""`--scheduler-cls inference.vllm.SpecExitScheduler`: puts the record into the response."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from inference.vllm import seams
from inference.vllm.record import NO_EXIT, clipped
from inference.vllm.settings import KEY


class _RecordMixin:
    """Carries each request's record on all of its outputs.

    On all, because the front end may end a request on any of them (a stop string, a contract).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.check(seams.SCHEDULER)
        super().__init__(*args, **kwargs)
        self._specexit_records: dict[str, dict[str, Any]] = {}

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """As vLLM does, plus `kv_transfer_params["specexit"]`."""
        records = self._specexit_records
        report = getattr(model_runner_output, "specexit", None)
        cost, fresh = None, {}
        if report is not None:
            running: Any = self.requests  # type: ignore[attr-defined]
            fresh = {r: (running[r], records.get(r)) for r in report["records"] if r in running}
            records.update(report["records"])
            cost = report["cost"]
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        for request_id, (request, before) in fresh.items():
            records[request_id] = clipped(
                records[request_id], request.num_output_tokens, before or NO_EXIT
            )
        if records:
            for group in outputs.values():
                for output in group.outputs:
                    record = records.get(output.request_id)
                    if record is not None:
                        if cost is not None:  # travels once, for the front end's metrics
                            record, cost = {**record, "cost": cost}, None
                        output.kv_transfer_params = {
                            **(output.kv_transfer_params or {}),
                            KEY: record,
                        }
            known: Any = self.requests  # type: ignore[attr-defined]
            if len(records) > len(known):
                for request_id in [r for r in records if r not in known]:
                    del records[request_id]
        return outputs


class _Sync(_RecordMixin, Scheduler):
    pass


class _Async(_RecordMixin, AsyncScheduler):
    pass


class SpecExitScheduler:
    """vLLM's scheduler, synchronous or asynchronous as configured, with the record."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Build the scheduler that the configuration asks for."""
        is_async = vllm_config.scheduler_config.async_scheduling
        return (_Async if is_async else _Sync)(vllm_config, *args, **kwargs)
