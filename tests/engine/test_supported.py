"""Configurations in which the exit would be silently wrong are refused before anything loads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inference.vllm.worker import REFUSED, check_supported
from specexit.errors import ConfigError


def config(part: str = "parallel_config", name: str = "none", value: Any = None) -> SimpleNamespace:
    """The parts of a vLLM configuration that are looked at, with one setting changed."""
    parts: dict[str, dict[str, Any]] = {p: {n: False} for p, n in REFUSED}
    parts.setdefault(part, {})[name] = value
    return SimpleNamespace(**{p: SimpleNamespace(**values) for p, values in parts.items()})


def test_a_plain_configuration_passes() -> None:
    check_supported(config())


@pytest.mark.parametrize(("part", "name"), REFUSED)
def test_refused_switch_is_named(part: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"specexit: {name} true is not supported"):
        check_supported(config(part, name, True))


@pytest.mark.parametrize("name", ["pipeline_parallel_size", "prefill_context_parallel_size"])
def test_refused_size_is_named_with_its_value(name: str) -> None:
    with pytest.raises(ConfigError, match=f"specexit: {name} 2 is not supported; set it to 1"):
        check_supported(config("parallel_config", name, 2))


@pytest.mark.parametrize(("part", "name"), REFUSED)
def test_refused_switch_exists_in_this_vllm(part: str, name: str) -> None:
    """A renamed switch would be let through in silence."""
    import vllm.config as configs

    owner = {
        "parallel_config": configs.ParallelConfig,
        "cache_config": configs.CacheConfig,
        "model_config": configs.ModelConfig,
        "speculative_config": configs.SpeculativeConfig,
    }[part]
    assert name in owner.__dataclass_fields__
