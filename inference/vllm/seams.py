"""The private vLLM names that SpecExit's worker stands on, and the check that they are there.

A vLLM release may rename any of them. The check runs when the worker starts, so a server either
starts with all of them or says at once which one is missing; it never fails at a request.

Model Runner V1 (`vllm.v1.worker.gpu_model_runner.GPUModelRunner`, and its CPU subclass):
- `load_model`: the head is loaded after the draft;
- `_update_states`: requests enter, leave and are preempted;
- `sample_tokens` with `execute_model_state.aux_hidden_states`: the features of the step;
- `_sample` and `RejectionSampler._get_logprobs_tensors`: the accepted tokens before their
  logprobs are taken, so that ids, logprobs and ranks of a forced token are right by construction;
- `requests`, `input_batch`, `discard_request_mask`, `input_ids`, `query_start_loc`: rows and ids.
Model Runner V2 (`vllm.v1.worker.gpu.model_runner.GPUModelRunner`, and its CPU subclass):
- `load_model`: as above;
- `add_requests`, `finish_requests`: requests enter (a resumed one as new), leave, are preempted;
- `sample_tokens` with `execute_model_state.aux_hidden_states`: the features of the step;
- `sample` with `InputBatch` and `SamplerOutput`: the sampled tokens before anything reads them;
- `Sampler.sample`, `RejectionSampler._get_logprobs_tensors`, `compute_topk_scores`: the logits
  behind a step's logprobs, for those of a forced token;
- `AsyncOutput.get_output`, `output_copy_stream`, `main_stream`: the record's way to the host;
- `req_states.req_id_to_index`: slots.
Scheduler (`vllm.v1.core.sched`): `update_from_output`, for the response's record.
Front end: `vllm.v1.engine.output_processor.RequestState.make_request_output`, for the metrics;
`vllm.v1.engine.input_processor.InputProcessor._validate_params`, for the request's arguments.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from specexit.errors import SpecExitError

TESTED = "0.32"


class SeamError(SpecExitError):
    """This vLLM lacks a private name that SpecExit needs."""


@dataclass(frozen=True)
class Seam:
    """One private name: `module`, dotted `path` in it, and parameters that a function must have."""

    module: str
    path: str
    parameters: tuple[str, ...] = ()


_RUNNER_V1 = "vllm.v1.worker.gpu_model_runner"
WORKER_V1 = (
    Seam(_RUNNER_V1, "GPUModelRunner.load_model"),
    Seam(_RUNNER_V1, "GPUModelRunner._update_states", ("scheduler_output",)),
    Seam(_RUNNER_V1, "GPUModelRunner.sample_tokens", ("grammar_output",)),
    Seam(_RUNNER_V1, "GPUModelRunner._sample", ("logits", "spec_decode_metadata")),
    Seam(_RUNNER_V1, "ExecuteModelState._fields.aux_hidden_states"),
    Seam(
        "vllm.v1.sample.rejection_sampler",
        "RejectionSampler._get_logprobs_tensors",
        ("metadata", "sampled_token_ids"),
    ),
    Seam(
        "vllm.v1.sample.rejection_sampler",
        "expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
    ),
    Seam("vllm.v1.spec_decode.metadata", "SpecDecodeMetadata.__annotations__.logits_indices"),
    Seam(
        "vllm.v1.spec_decode.metadata", "SpecDecodeMetadata.__annotations__.cu_num_sampled_tokens"
    ),
    Seam("vllm.v1.core.sched.output", "SchedulerOutput.__annotations__.finished_req_ids"),
    Seam("vllm.v1.core.sched.output", "SchedulerOutput.__annotations__.preempted_req_ids"),
    Seam("vllm.v1.core.sched.output", "SchedulerOutput.__annotations__.scheduled_new_reqs"),
    Seam("vllm.v1.core.sched.output", "CachedRequestData.__annotations__.resumed_req_ids"),
)
_RUNNER_V2 = "vllm.v1.worker.gpu.model_runner"
WORKER_V2 = (
    Seam(_RUNNER_V2, "GPUModelRunner.load_model"),
    Seam(_RUNNER_V2, "GPUModelRunner.finish_requests", ("scheduler_output",)),
    Seam(_RUNNER_V2, "GPUModelRunner.add_requests", ("scheduler_output",)),
    Seam(_RUNNER_V2, "GPUModelRunner.sample_tokens", ("grammar_output",)),
    Seam(
        _RUNNER_V2,
        "GPUModelRunner.sample",
        ("hidden_states", "input_batch", "grammar_output"),
    ),
    Seam(_RUNNER_V2, "ExecuteModelState._fields.aux_hidden_states"),
    *(
        Seam("vllm.v1.worker.gpu.input_batch", f"InputBatch.__annotations__.{name}")
        for name in (
            "req_ids",
            "idx_mapping",
            "logits_indices",
            "cu_num_logits",
            "input_ids",
            "query_start_loc",
            "query_start_loc_np",
            "num_computed_tokens_np",
            "num_scheduled_tokens",
            "is_prefilling_np",
            "has_prefill",
        )
    ),
    *(
        Seam("vllm.v1.worker.gpu.sample.output", f"SamplerOutput.__annotations__.{name}")
        for name in ("sampled_token_ids", "num_sampled", "num_rejected", "logprobs_tensors")
    ),
    Seam("vllm.v1.worker.gpu.sample.sampler", "Sampler.sample", ("logits", "return_logprobs")),
    Seam(
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
        "RejectionSampler._get_logprobs_tensors",
        ("sampled", "num_sampled", "logits"),
    ),
    Seam("vllm.v1.worker.gpu.sample.logprob", "compute_topk_scores", ("logits_mode",)),
    Seam("vllm.v1.worker.gpu.async_utils", "AsyncOutput.get_output"),
    Seam("vllm.v1.worker.gpu.states", "RequestState.add_request"),
    Seam("vllm.v1.core.sched.output", "NewRequestData.__annotations__.prefill_token_ids"),
)
SCHEDULER = (
    Seam(
        "vllm.v1.core.sched.scheduler",
        "Scheduler.update_from_output",
        ("scheduler_output", "model_runner_output"),
    ),
    Seam("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
    Seam("vllm.v1.engine", "EngineCoreOutput.__annotations__.kv_transfer_params"),
)
FRONT_END = (
    Seam("vllm.v1.engine.input_processor", "InputProcessor._validate_params", ("params",)),
    Seam(
        "vllm.v1.engine.output_processor",
        "RequestState.make_request_output",
        ("finish_reason", "stop_reason", "kv_transfer_params"),
    ),
)


def check(seams: tuple[Seam, ...]) -> None:
    """Raise unless every seam is there.

    Raises:
        SeamError: names all that are missing, the vLLM version and what to do.
    """
    missing = [fault for seam in seams if (fault := _fault(seam))]
    if missing:
        raise SeamError(
            f"vllm {vllm_version()} lacks what SpecExit hooks into: {'; '.join(missing)}. "
            f"Tested with vllm {TESTED}: install that version, or a SpecExit release for yours"
        )


def check_attributes(instance: Any, names: tuple[str, ...]) -> None:
    """Raise unless an object has all attributes (those that only a constructor sets).

    Raises:
        SeamError: names all that are missing.
    """
    missing = [name for name in names if not hasattr(instance, name)]
    if missing:
        raise SeamError(
            f"vllm {vllm_version()}: {type(instance).__name__} has no {', '.join(missing)}. "
            f"Tested with vllm {TESTED}: install that version, or a SpecExit release for yours"
        )


def vllm_version() -> str:
    """The running vLLM's version."""
    return str(getattr(import_module("vllm"), "__version__", "of unknown version"))


def _fault(seam: Seam) -> str | None:
    try:
        found: Any = import_module(seam.module)
    except ImportError:
        return f"module {seam.module}"
    for part in seam.path.split("."):
        if isinstance(found, dict | tuple):
            if part not in found:
                return f"{seam.module}.{seam.path}"
            continue
        if not hasattr(found, part):
            return f"{seam.module}.{seam.path}"
        found = getattr(found, part)
    if seam.parameters:
        has = inspect.signature(found).parameters
        lacking = [name for name in seam.parameters if name not in has]
        if lacking:
            return f"{seam.module}.{seam.path}({', '.join(lacking)})"
    return None
