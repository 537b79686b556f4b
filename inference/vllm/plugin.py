"""vLLM's entry point (`vllm.general_plugins`): called once in every process of an engine."""

from __future__ import annotations


def register() -> None:
    """Install what SpecExit adds to vLLM's front end."""
    from inference.vllm import contract_stop, metrics, request

    request.install()
    contract_stop.install()
    metrics.install()
