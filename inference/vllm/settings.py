"""`--additional-config '{"specexit": {...}}'`: the server's policy and how its worker runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from inference.vllm.exit_plan import overlay
from specexit.config import Settings, parse
from specexit.errors import ConfigError
from specexit.policy import ExitPolicy

KEY = "specexit"


class WorkerSettings(Settings):
    """Keys of `additional_config.specexit` beside those of the policy."""

    record: bool = False
    """Keep the raw signals of every thinking token, for `collective_rpc("specexit_take_records")`;
    slows the engine down."""
    check_target: bool = True
    """Refuse a head whose target's weights differ (switch off for a quantised copy)."""
    step: Literal["auto", "tensors"] = "auto"
    """How the rule is computed: `auto` chooses plain Python on a CPU and tensors elsewhere."""
    head: str | None = None
    """Folder whose `specexit/` holds the signals, where it is not the draft's own (an MTP draft
    lies in the target's folder)."""
    think_start: str | None = None
    """Text that opens the thinking, instead of what the head says."""
    think_end: str | None = None
    """Text that closes the thinking, instead of what the head says."""


def split_settings(additional_config: Any) -> tuple[WorkerSettings, dict[str, Any]]:
    """The worker's settings and the policy overrides in vLLM's `additional_config`.

    Raises:
        ConfigError: names the key, the value and what is allowed.
    """
    values = additional_config.get(KEY, {}) if isinstance(additional_config, Mapping) else {}
    where = f"additional_config.{KEY}"
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: {values!r} is not a mapping of settings")
    own = {k: v for k, v in values.items() if k in WorkerSettings.model_fields}
    rest = {k: v for k, v in values.items() if k not in WorkerSettings.model_fields}
    unknown = sorted(rest.keys() - ExitPolicy.model_fields.keys())
    if unknown:
        known = sorted({*WorkerSettings.model_fields, *ExitPolicy.model_fields})
        raise ConfigError(f"{where}.{unknown[0]}: unknown key; known keys: {', '.join(known)}")
    settings = parse(WorkerSettings, own, where=f"{where}.")
    if (settings.think_start is None) != (settings.think_end is None):
        raise ConfigError(f"{where}: give both think_start and think_end, or neither")
    return settings, rest


def server_policy(additional_config: Any, default: ExitPolicy) -> ExitPolicy:
    """The head's policy with the server's overrides.

    Raises:
        ConfigError: names the key, the value and what is allowed.
    """
    _, changes = split_settings(additional_config)
    return overlay(default, changes, where=f"additional_config.{KEY}")
