"""SpecExit's metrics on the server's `/metrics`, counted where the front end ends a request.

They sit in the API server's process, in `prometheus_client`'s default registry, so vLLM's own
endpoint shows them, and its multi-process mode (several API servers) adds them up.

- `specexit_requests_total{exit}`: finished requests by `injected`, `natural`, `none`.
- `specexit_think_tokens`, `specexit_exit_boundary`: histograms, at the think end.
- `specexit_exit_confidence`, `_progress`, `_remain`: smoothed signals at an injected end.
- `specexit_contract_stops_total{contract}`: requests that their contract ended.
- `specexit_step_seconds_total`, `specexit_steps_total`: time that the exit rule took in the engine.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

from inference.vllm import seams
from inference.vllm.record import clipped
from inference.vllm.settings import KEY

_MARK = "_specexit_metrics"
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_UNIT = tuple(i / 10 for i in range(1, 11))
CONTRACT = "contract:"  # `contract_stop.STOP_REASON`


class Metrics:
    """The collectors; made once per process, on first use."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Histogram

        self.requests = Counter(
            "specexit_requests", "Finished requests by how their thinking ended", ["exit"]
        )
        self.think_tokens = Histogram(
            "specexit_think_tokens", "Thinking tokens at the think end", buckets=_TOKENS
        )
        self.boundary = Histogram(
            "specexit_exit_boundary", "Boundary of an injected think end", buckets=_TOKENS[:8]
        )
        self.confidence = Histogram(
            "specexit_exit_confidence", "Smoothed confidence at an injected end", buckets=_UNIT
        )
        self.progress = Histogram(
            "specexit_exit_progress", "Smoothed progress at an injected end", buckets=_UNIT
        )
        self.remain = Histogram(
            "specexit_exit_remain", "Smoothed remaining tokens at an injected end", buckets=_TOKENS
        )
        self.contract_stops = Counter(
            "specexit_contract_stops", "Requests ended by their contract", ["contract"]
        )
        self.steps = Counter("specexit_steps", "Engine steps in which the exit rule ran")
        self.step_seconds = Counter(
            "specexit_step_seconds", "Time that the exit rule took, seconds"
        )

    def observe(self, record: dict[str, Any] | None, stop_reason: Any) -> None:
        """Count one finished request."""
        if isinstance(stop_reason, str) and stop_reason.startswith(CONTRACT):
            self.contract_stops.labels(stop_reason.removeprefix(CONTRACT)).inc()
        if record is None:
            return
        self.requests.labels(record["exit"]).inc()
        if "think_tokens" in record:
            self.think_tokens.observe(record["think_tokens"])
        if record["exit"] == "injected":
            self.boundary.observe(record["boundary"])
            self.confidence.observe(record["signals"]["confidence"])
            self.progress.observe(record["signals"]["progress"])
            self.remain.observe(record["signals"]["remain"])

    def add_steps(self, steps: int, seconds: float) -> None:
        """Add what the worker reports of its own time."""
        self.steps.inc(steps)
        self.step_seconds.inc(seconds)


@cache
def metrics() -> Metrics:
    """This process's collectors."""
    return Metrics()


def install() -> None:
    """Wrap `RequestState.make_request_output`; a second call changes nothing.

    Raises:
        SeamError: this vLLM has no such seam.
    """
    from vllm.v1.engine.output_processor import RequestState

    seams.check(seams.FRONT_END)
    if hasattr(RequestState, _MARK):
        return
    original = RequestState.make_request_output

    @wraps(original)
    def make_request_output(
        self: Any,
        new_token_ids: Any,
        pooling_output: Any,
        finish_reason: Any,
        stop_reason: Any,
        kv_transfer_params: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if kv_transfer_params and KEY in kv_transfer_params:
            record = kv_transfer_params[KEY]
            cost = record.pop("cost", None)
            if cost:
                metrics().add_steps(*cost)
            if self.detokenizer is not None:
                record = clipped(record, self.detokenizer.num_output_tokens())
                kv_transfer_params[KEY] = record
        else:
            record = None
        if finish_reason is not None and (record is not None or stop_reason is not None):
            metrics().observe(record, stop_reason)
        return original(
            self,
            new_token_ids,
            pooling_output,
            finish_reason,
            stop_reason,
            kv_transfer_params,
            *args,
            **kwargs,
        )

    RequestState.make_request_output = make_request_output
    setattr(RequestState, _MARK, True)
