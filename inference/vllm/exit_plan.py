"""A request's exit policy as the numbers that a slot holds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specexit.config import parse
from specexit.errors import ConfigError
from specexit.policy import SIGNALS, ExitPolicy

NEVER = 2**31 - 1
ENGINE_SMOOTHING = ("ewma", "none")


@dataclass(frozen=True)
class ExitPlan:
    """One policy, ready to be copied into a slot of `ExitState`.

    Attributes:
        limits: patience, min tokens, min boundaries, soft and hard limit, number of forced ids.
        modes: enabled, unsmoothed, step unit, reference preset, re-enter, discourse.
        levels: thresholds of (confidence, progress, -remain); a signal passes when it is greater.
        ignored: which of the three signals are not looked at.
        alpha: EWMA weight of the newest value.
        forced: ids of the think end, then those of the exit suffix.
    """

    limits: tuple[int, int, int, int, int, int]
    modes: tuple[bool, bool, bool, bool, bool, bool]
    levels: tuple[float, float, float]
    ignored: tuple[bool, bool, bool]
    alpha: float
    forced: tuple[int, ...]

    @property
    def enabled(self) -> bool:
        """Whether the request is looked at at all."""
        return self.modes[0]

    @property
    def reenters(self) -> bool:
        """Whether a thinking may begin again after an exit."""
        return self.modes[4]

    @property
    def discourse(self) -> bool:
        """Whether an exit may also fall before a connective."""
        return self.modes[5]


def make_plan(
    policy: ExitPolicy,
    end_ids: Sequence[int],
    encode: Callable[[str], Sequence[int]] | None = None,
) -> ExitPlan:
    """Turn a policy into a plan.

    Args:
        policy: checked by `check_engine_policy`.
        end_ids: ids of the think end.
        encode: text -> ids, for `exit_suffix`.
    """
    t = policy.thresholds
    levels = (floor32(t.confidence), floor32(t.progress), floor32(-t.remain))
    ignored = tuple(name not in policy.signals for name in SIGNALS)
    if not policy.signals:  # only max_think_tokens ends the thinking
        levels, ignored = (math.inf, math.inf, math.inf), (False, False, False)
    suffix = tuple(encode(policy.exit_suffix)) if policy.exit_suffix and encode else ()
    forced = (*end_ids, *suffix)
    soft, hard = policy.max_think_tokens, policy.hard_limit
    reference = policy.preset == "reference"
    return ExitPlan(
        limits=(
            policy.patience,
            policy.min_think_tokens,
            policy.min_boundaries,
            NEVER if soft is None else soft,
            NEVER if hard is None else hard,
            len(forced),
        ),
        modes=(
            policy.enabled,
            policy.smoothing.kind == "none" or policy.smoothing.alpha == 1,
            policy.smoothing.unit == "step",
            reference,
            policy.reenter,
            policy.step_split == "discourse",
        ),
        levels=levels,
        ignored=(ignored[0], ignored[1], ignored[2]),
        alpha=policy.smoothing.alpha,
        forced=forced,
    )


def floor32(value: float) -> float:
    """The greatest float32 <= value: for every float32 x, x > value iff x > floor32(value)."""
    rounded = np.float32(value)
    if float(rounded) > value:
        rounded = np.nextafter(rounded, np.float32(-np.inf))
    return float(rounded)


def overlay(base: ExitPolicy, changes: Mapping[str, Any], where: str = "specexit") -> ExitPolicy:
    """`base` with the given keys replaced; `thresholds` and `smoothing` merge key by key.

    A `preset` brings its own smoothing unless `smoothing` is given too.

    Raises:
        ConfigError: names the key, the value and what is allowed.
    """
    values = base.model_dump()
    if "preset" in changes:
        del values["smoothing"]
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            values[key] = {**values[key], **value}
        else:
            values[key] = value
    policy = parse(ExitPolicy, values, where=f"{where}.")
    check_engine_policy(policy, where)
    return policy


def check_engine_policy(policy: ExitPolicy, where: str = "specexit") -> None:
    """Refuse what only replay can do.

    Raises:
        ConfigError: names the key, the value and what is allowed.
    """
    if policy.smoothing.kind not in ENGINE_SMOOTHING:
        raise ConfigError(
            f"{where}.smoothing.kind: {policy.smoothing.kind!r} runs in replay only; "
            f"the engine has {', '.join(ENGINE_SMOOTHING)}"
        )


def request_policy(base: ExitPolicy, argument: Any) -> ExitPolicy:
    """A request's policy from its `extra_args["specexit"]`.

    Args:
        base: the server's policy.
        argument: None, `"off"`, `"on"`, a mapping of overrides, or such a mapping as JSON text
            (over HTTP, `vllm_xargs` carries strings).

    Raises:
        ConfigError: names the key, the value and what is allowed.
    """
    if argument is None or argument == "on":
        return base
    if argument == "off":
        return base.model_copy(update={"enabled": False})
    if isinstance(argument, str):
        try:
            argument = json.loads(argument)
        except (ValueError, RecursionError) as error:  # ValueError: a huge integer too
            raise ConfigError(
                f"specexit: {argument[:200]!r} is neither 'off', 'on' nor JSON ({error}); "
                'give "off" or policy overrides such as {"patience": 2}'
            ) from None
    if not isinstance(argument, Mapping):
        raise ConfigError(
            f"specexit: {argument!r} is not valid; give 'off', 'on' or policy overrides "
            f"({', '.join(sorted(ExitPolicy.model_fields))})"
        )
    return overlay(base, argument)
