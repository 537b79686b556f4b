"""`--worker-cls inference.vllm.SpecExitWorker`: vLLM's own worker, its runner with the exit."""

from __future__ import annotations

from typing import Any

from vllm.platforms import current_platform

from inference.vllm import cpu_sampling, seams
from specexit.errors import ConfigError

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as _Base
else:
    from vllm.v1.worker.gpu_worker import Worker as _Base


class SpecExitWorker(_Base):
    """The platform's worker; nothing in it is copied.

    Nothing is patched globally but one function that vLLM's CPU backend gets wrong
    (`cpu_sampling`).
    """

    def init_device(self) -> None:
        """Build the model runner as vLLM does, then mix the exit in."""
        check_supported(self.vllm_config)
        super().init_device()
        if current_platform.is_cpu() and not self.use_v2_model_runner:
            cpu_sampling.mend()
        mix_in(self.model_runner, v2=bool(self.use_v2_model_runner))

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as vLLM does; its made-up requests do not count."""
        result = super().compile_or_warm_up_model()
        self.model_runner.specexit.journal.reset()
        return result

    def sleep(self, level: int = 1) -> None:
        """Sleep as vLLM does, at level 1.

        Raises:
            ConfigError: level 2 drops what `reload_weights` does not bring back: the signal head.
        """
        if level > 1:
            raise ConfigError(
                f"specexit: sleep level {level} would drop the signal head; use level 1"
            )
        super().sleep(level)

    def specexit_stats(self) -> dict[str, Any]:
        """Counters since the start, and what is in use now (`collective_rpc`)."""
        session = self.model_runner.specexit
        return {**session.journal.counters, **session.usage()}

    def specexit_take_records(self) -> dict[str, dict[str, Any]]:
        """Raw signals of the finished requests, in recording mode (`collective_rpc`)."""
        session = self.model_runner.specexit
        if not session.journal.keep_signals:
            raise ConfigError(
                "specexit_take_records: raw signals are not kept; start with "
                '--additional-config \'{"specexit": {"record": true}}\''
            )
        return session.journal.take_signals()


def mix_in(runner: Any, *, v2: bool) -> None:
    """Put the exit's mixin in front of a runner's class, once.

    Raises:
        SeamError: this vLLM lacks a name that the mixin needs.
        ConfigError: the runner has the mixin already.
    """
    Mixin: type
    if v2:
        from inference.vllm.runner_v2 import SpecExitRunnerV2 as Mixin

        seams.check(seams.WORKER_V2)
    else:
        from inference.vllm.runner_v1 import SpecExitRunnerV1 as Mixin

        seams.check(seams.WORKER_V1)
    if isinstance(runner, Mixin):
        raise ConfigError("specexit: this model runner has SpecExit already; mix it in once")
    own = type(runner)
    runner.__class__ = type(f"SpecExit{own.__name__}", (Mixin, own), {})


REFUSED = (
    # rank-dependent shares of the batch or of the hidden states
    ("parallel_config", "enable_batch_sharded_sampling"),
    ("parallel_config", "enable_dbo"),
    # rows outside the sampled ones have no features
    ("cache_config", "kv_sharing_fast_prefill"),
    # the mask was taken for the token that the exit replaces
    ("model_config", "return_sampling_mask"),
    # rows of a request are found by its number of drafts on the host
    ("speculative_config", "disable_padded_drafter_batch"),
    ("speculative_config", "enable_adaptive_verification"),
)


def check_supported(vllm_config: Any) -> None:
    """Refuse configurations in which the exit would be silently wrong.

    Raises:
        ConfigError: names the setting and its value.
    """
    parallel = vllm_config.parallel_config
    for name in ("pipeline_parallel_size", "prefill_context_parallel_size"):
        value = getattr(parallel, name, 1)
        if value > 1:
            raise ConfigError(f"specexit: {name} {value} is not supported; set it to 1")
    speculative = vllm_config.speculative_config
    if getattr(speculative, "method", None) == "mtp" and parallel.tensor_parallel_size > 1:
        raise ConfigError(  # its embedding is a collective, which ranks would not run alike
            f"specexit: method mtp with tensor_parallel_size {parallel.tensor_parallel_size} is "
            "not supported; set it to 1"
        )
    for part, name in REFUSED:
        if getattr(getattr(vllm_config, part, None), name, False):
            raise ConfigError(f"specexit: {name} true is not supported; leave it out")
