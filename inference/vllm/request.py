"""Check a request's `specexit` argument in the front end: HTTP 400 instead of a dead worker.

SamplingParams(extra_args={"specexit": "off"})                       # LLM.generate, AsyncLLM
extra_body={"vllm_xargs": {"specexit": '{"patience": 2}'}}           # the OpenAI server
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from inference.vllm import seams
from inference.vllm.exit_plan import request_policy
from inference.vllm.head import policy_of
from inference.vllm.settings import KEY
from specexit.errors import SpecExitError

_MARK = "_specexit_request_check"


def install() -> None:
    """Wrap `InputProcessor._validate_params`; a second call changes nothing.

    Raises:
        SeamError: this vLLM has no such seam.
    """
    from vllm.v1.engine.input_processor import InputProcessor

    seams.check(seams.FRONT_END)
    if hasattr(InputProcessor, _MARK):
        return
    original = InputProcessor._validate_params

    @wraps(original)
    def validate(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        argument = (getattr(params, "extra_args", None) or {}).get(KEY)
        if argument is not None:
            check(self, argument, params)
        return original(self, params, *args, **kwargs)

    InputProcessor._validate_params = validate
    setattr(InputProcessor, _MARK, True)


def check(processor: Any, argument: Any, params: Any) -> None:
    """Raise vLLM's validation error unless the server can do what a request asks for.

    Raises:
        VLLMValidationError: the server has no SpecExit worker, or the argument is not valid.
    """
    from vllm.exceptions import VLLMValidationError

    try:
        base = getattr(processor, "_specexit_policy", None)
        if base is None:
            if not _has_worker(processor.vllm_config):
                _refuse_without_worker(argument)
                return
            base = processor._specexit_policy = policy_of(processor.vllm_config)
        policy = request_policy(base, argument)
        if getattr(params, "structured_outputs", None) is not None and policy.exit_suffix:
            raise SpecExitError(
                f"{KEY}.exit_suffix: {policy.exit_suffix!r} would be the first text of a "
                "structured output, which its grammar refuses; leave one of them out"
            )
    except SpecExitError as error:
        raise VLLMValidationError(
            str(error), parameter=f"vllm_xargs.{KEY}", value=str(argument)[:200]
        ) from None


def _has_worker(vllm_config: Any) -> bool:
    from vllm.utils.import_utils import resolve_obj_by_qualname

    worker = vllm_config.parallel_config.worker_cls
    if isinstance(worker, str):
        worker = resolve_obj_by_qualname(worker)
    return hasattr(worker, "specexit_stats")


def _refuse_without_worker(argument: Any) -> None:
    """A server without SpecExit knows only `off`."""
    if argument != "off":
        raise SpecExitError(
            f"{KEY}: this server runs without SpecExit; start it with --worker-cls "
            "inference.vllm.SpecExitWorker and a head, or leave the argument out"
        )
