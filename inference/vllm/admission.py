"""A request as the host knows it, and how it enters a slot: what its known tokens already say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inference.vllm.exit_plan import ExitPlan, request_policy
from inference.vllm.exit_state import Admission, Snapshot
from inference.vllm.head import LoadedHead
from inference.vllm.host_signals import Row
from inference.vllm.settings import KEY
from specexit.policy import ExitPolicy
from specexit.think import last_index


@dataclass
class Request:
    """What the host knows about a request.

    Attributes:
        slot: its row in the state; -1 while preempted.
        outputs: sampled tokens known when it (re-)entered.
        replay: indices `[begin, end)` of thinking tokens among the known ids whose rows are still
            to be computed by a prefill; None when there are none.
        ids: prompt (and outputs, on a resume), kept only for the replay.
        over: nothing more can happen to it, so its steps need no work.
        since: number of the step before which it (re-)entered; what earlier ones say of it was
            dropped.
    """

    request_id: str
    plan: ExitPlan
    policy: ExitPolicy
    slot: int = -1
    outputs: int = 0
    replay: range | None = None
    ids: Sequence[int] = ()
    over: bool = False
    since: int = 0
    saved: Snapshot | Row | None = None
    injected: list[int] = field(default_factory=list)


def effective_policy(loaded: LoadedHead, params: Any) -> ExitPolicy:
    """A request's policy; nothing is put where a grammar constrains the tokens.

    Args:
        loaded: the head and its settings.
        params: the request's `SamplingParams`, if it has any.
    """
    extra = getattr(params, "extra_args", None) or {}
    policy = request_policy(loaded.policy, extra.get(KEY))
    if getattr(params, "structured_outputs", None) is None:
        return policy
    if loaded.grammar_thinks:
        return policy.model_copy(update={"enabled": False})
    return policy.model_copy(update={"exit_suffix": ""})


def admit(
    loaded: LoadedHead,
    request: Request,
    prompt: Sequence[int],
    outputs: Sequence[int],
    computed: int,
    lag: int,
) -> tuple[Admission, int]:
    """Read a new or resumed request's known tokens; sets what the request has to replay.

    Args:
        loaded: the head and its settings.
        request: `saved` is taken out of it, `outputs`, `replay` and `ids` are set.
        prompt, outputs: its ids.
        computed: tokens whose rows will not be computed (prefix cache).
        lag: by how many rows a token's features come early (1 for MTP).

    Returns:
        How it enters its slot, and how many thinking tokens the head will never see.
    """
    think, known = loaded.think, [*prompt, *outputs]
    saved, request.saved = request.saved, None
    if saved is not None and saved.outputs != len(outputs):
        saved = None  # outputs were taken back after the snapshot: compute the state again
    request.outputs = len(outputs)
    request.replay = None
    closed = bool(request.injected)
    thinking = think.is_thinking(known) and (request.plan.reenters or not closed)
    begin = _first_thinking(loaded, known) if thinking else len(known)
    tokens = boundary = forced = missing = 0
    if saved is None and begin < len(known):
        before = known[begin - 1] if begin else -1
        splits = loaded.splitter.boundaries(known[begin:-1], previous=before)[1:]
        tokens, boundary = len(known) - 1 - begin, len(splits)
        missing = max(0, min(computed, len(known) - 1) + lag - begin)
        if begin + missing < len(known) - 1:
            request.replay, request.ids = range(begin + missing, len(known) - 1), known
    if closed:
        forced = min(len(request.plan.forced), len(outputs) - request.injected[-1])
    admission = Admission(
        slot=request.slot,
        plan=request.plan,
        thinking=thinking,
        open_prompt=not outputs and begin < len(known),
        outputs=len(outputs),
        tokens=tokens,
        boundary=boundary,
        tail=known[:-1],
        closed=closed,
        forced=forced,
        last=known[-1] if known else -1,
        snapshot=saved,
    )
    return admission, missing


def _first_thinking(loaded: LoadedHead, ids: Sequence[int]) -> int:
    """Index of the first thinking token: white space after the think start is its opening."""
    start = loaded.think.start_ids
    begin = last_index(ids, start) + len(start)
    while begin < len(ids) and loaded.is_blank[ids[begin]]:
        begin += 1
    return begin
