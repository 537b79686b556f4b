"""End a request in vLLM's front end as soon as its answer satisfies the request's contract.

    SamplingParams(extra_args={"contract": "boxed_integer"})             # LLM.generate, AsyncLLM
    extra_body={"vllm_xargs": {"contract": '{"type": "choice"}'}}        # the OpenAI server

The stop sits where vLLM evaluates stop strings, so everything behind it is vLLM's own: surplus
tokens and their logprobs are dropped, `finish_reason` is `stop`, the engine core aborts the
request. `stop_reason` is `contract:<name>`. As with a stop string, the token that completes the
answer is kept whole among the token ids while the text is cut at the exact character.

Private vLLM names used here (each checked by `install`):
`vllm.v1.engine.detokenizer`: `IncrementalDetokenizer.from_new_request`, `uses_fast_detokenizer`,
`FastIncrementalDetokenizer`, `SlowIncrementalDetokenizer` with `update`, `num_output_tokens`,
`output_text`, `min_tokens`, `stop_buffer_length`;
`vllm.v1.engine.input_processor.InputProcessor._validate_params`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from inference.answer_watch import set_think_format, watch_answer
from inference.vllm.head import head_folder
from inference.vllm.settings import split_settings
from specexit.checkpoint import has_signals, load_metadata
from specexit.contracts import Contract, ContractError, contract
from specexit.contracts.errors import shorten
from specexit.contracts.limits import check_size
from specexit.errors import SpecExitError
from specexit.think import ThinkFormat

KEY = "contract"
STOP_REASON = "contract:"
_MARK = "_specexit_contract_stop"
_THINK_SET = "_specexit_think_set"


def install() -> None:
    """Wrap the two seams of the front end; a second call changes nothing.

    Raises:
        SpecExitError: this vLLM has no such seam.
    """
    import vllm.v1.engine.detokenizer as detokenizer
    from vllm.v1.engine.input_processor import InputProcessor

    check_seams()
    if hasattr(InputProcessor._validate_params, _MARK):
        return
    _wrap_detokenizer(detokenizer)
    _wrap_validation(InputProcessor)


def contract_of(params: Any) -> Contract | None:
    """The contract that a request's `SamplingParams` ask for.

    Raises:
        ContractError: it is not a contract.
    """
    spec = (getattr(params, "extra_args", None) or {}).get(KEY)
    if spec is None:
        return None
    if isinstance(spec, str):
        check_size(spec, KEY)
        return _parse(spec)
    if not isinstance(spec, dict):
        hint = "; give its .spec()" if isinstance(spec, Contract) else ""
        raise ContractError(f"{KEY}: {type(spec).__name__} is not a name, an object or JSON{hint}")
    check_size(spec, KEY)
    return _parse(json.dumps(spec))


def validate(params: Any, *, has_tokenizer: bool = True) -> None:
    """Refuse a request whose contract is wrong or cannot be watched.

    Args:
        params: the request's `SamplingParams`.
        has_tokenizer: False where the engine runs with `skip_tokenizer_init`.

    Raises:
        VLLMValidationError: the server answers it with HTTP 400.
    """
    from vllm.exceptions import VLLMValidationError

    try:
        wanted = contract_of(params)
    except ContractError as error:
        raise VLLMValidationError(
            str(error),
            parameter=f"vllm_xargs.{KEY}",
            value=shorten(repr(params.extra_args[KEY])),
        ) from None
    if wanted is not None and not (params.detokenize and has_tokenizer):
        cause = "skip_tokenizer_init" if params.detokenize else "detokenize=False"
        raise VLLMValidationError(
            f"{KEY}: {wanted.name!r} reads the output's text, which {cause} turns off; "
            "leave one of the two out",
            parameter=f"vllm_xargs.{KEY}",
        )


@lru_cache(maxsize=256)
def _parse(spec: str) -> Contract:
    return contract(spec, path=KEY, files=False)


def _wrap_validation(processor: Any) -> None:
    stock = processor._validate_params

    def validate_params(self: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        if (getattr(params, "extra_args", None) or {}).get(KEY) is not None:
            validate(params, has_tokenizer=self.tokenizer is not None)
            if not hasattr(self, _THINK_SET):
                setattr(self, _THINK_SET, True)
                think = _think_of(self.vllm_config, self.tokenizer)
                if think is not None:
                    set_think_format(self.tokenizer, think)
        return stock(self, params, *args, **kwargs)

    setattr(validate_params, _MARK, True)
    processor._validate_params = validate_params


def _think_of(vllm_config: Any, tokenizer: Any) -> ThinkFormat | None:
    """The tags that the worker goes by: those of the server's settings, else of its head.

    None where there is no head with signals; then the tokenizer says.
    """
    settings, _ = split_settings(vllm_config.additional_config)
    if settings.think_start is not None:
        return ThinkFormat.from_tokenizer(tokenizer, settings.think_start, settings.think_end)
    try:
        folder = head_folder(vllm_config)
    except SpecExitError:
        return None
    return load_metadata(folder).think if has_signals(folder) else None


def _wrap_detokenizer(module: Any) -> None:
    stock = module.IncrementalDetokenizer.from_new_request.__func__
    fast = _with_contract(module.FastIncrementalDetokenizer)
    slow = _with_contract(module.SlowIncrementalDetokenizer)

    def from_new_request(cls: Any, tokenizer: Any, request: Any) -> Any:
        if tokenizer is None or contract_of(request.sampling_params) is None:
            return stock(cls, tokenizer, request)
        return (fast if module.uses_fast_detokenizer(tokenizer) else slow)(tokenizer, request)

    module.IncrementalDetokenizer.from_new_request = classmethod(from_new_request)


def _with_contract(base: Any) -> Any:
    """The subclass of a vLLM detokenizer that also watches for the contract's answer."""

    class ContractDetokenizer(base):
        output_text: str
        stop_buffer_length: int

        def __init__(self, tokenizer: Any, request: Any) -> None:
            super().__init__(tokenizer, request)
            wanted = contract_of(request.sampling_params)
            assert wanted is not None
            self._watch = watch_answer(wanted, tokenizer, request.prompt_token_ids)
            self._reason = STOP_REASON + wanted.name
            self.stop_buffer_length = max(self.stop_buffer_length, self._watch.holdback)

        def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:
            """Take a step's tokens one by one, so the result does not depend on their number.

            Tokens after the deciding one are never added, which is what tells vLLM to drop them.
            """
            last = len(new_token_ids) - 1
            for i, token_id in enumerate(new_token_ids):
                before = len(self.output_text)
                stop = super().update([token_id], stop_terminated and i == last)
                if stop is not None:
                    return stop
                cut = None
                if self._watch.commit is None:
                    cut = self._watch.feed(token_id, self.output_text[before:])
                # An answer that came before min_tokens ends the request once they are reached.
                if self._watch.commit is not None and self.num_output_tokens() >= self.min_tokens:
                    if cut is not None:
                        self.output_text = self.output_text[: before + cut.keep]
                    return self._reason
            return None

    ContractDetokenizer.__name__ = f"Contract{base.__name__}"
    return ContractDetokenizer


def check_seams() -> None:
    """Raise unless this vLLM has the names that contracts need.

    Raises:
        SpecExitError: names what is missing.
    """
    import vllm.v1.engine.detokenizer as detokenizer
    from vllm.v1.engine.input_processor import InputProcessor

    wanted = {
        detokenizer: (
            "IncrementalDetokenizer",
            "FastIncrementalDetokenizer",
            "SlowIncrementalDetokenizer",
            "uses_fast_detokenizer",
        ),
        detokenizer.IncrementalDetokenizer: ("from_new_request", "num_output_tokens", "update"),
        InputProcessor: ("_validate_params",),
    }
    missing = [
        f"{getattr(owner, '__qualname__', owner.__name__)}.{name}"
        for owner, names in wanted.items()
        for name in names
        if not hasattr(owner, name)
    ]
    if missing:
        import vllm

        raise SpecExitError(
            f"vLLM {vllm.__version__} has no {', '.join(missing)}, which contracts need; "
            "use a vLLM version that SpecExit's documentation lists"
        )
