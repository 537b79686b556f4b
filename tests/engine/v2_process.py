"""Run requests on Model Runner V2 under Triton's interpreter, in a process of its own.

`python -m tests.engine.v2_process JOB.json RESULT.json`. The interpreter and the choice of runner
must be set before vLLM is imported, so V2's tests cannot share pytest's process.

A job holds `known` (prompt and output ids for the oracle drafter) and `engines`, each with
`arguments` for `vllm.LLM`, `worker` ("exit" or "stock"), `asynchronous`, and `runs`: named lists
of requests `{"prompt": [ids], ...SamplingParams}`. The result has, for each engine, the outputs of
each run, the worker's counters at the end, and how often a request was preempted.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

from tests.interpreter import quicken

RUNNER = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}


def prepare() -> None:
    """Let vLLM find a Triton that interprets kernels on the CPU, and choose V2."""
    os.environ.update(RUNNER)
    from specexit.engine_env import prepare_in_process_engine

    prepare_in_process_engine()
    import triton.backends

    class Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    triton.backends.backends["cpu"] = types.SimpleNamespace(driver=Driver, compiler=None)
    quicken()


def workers() -> dict[str, Any]:
    """The two workers, each with the oracle as its draft."""
    from vllm.v1.worker.cpu_worker import CPUWorker

    from inference.vllm.worker import SpecExitWorker
    from tests.engine.oracle import guess

    class OracleMixin:
        def load_model(self, *args: Any, **kwargs: Any) -> None:
            super().load_model(*args, **kwargs)  # type: ignore[misc]
            this: Any = self
            states, speculator = this.req_states, this.speculator
            propose = speculator.propose

            def known(batch: Any, *args: Any, **kwargs: Any) -> Any:
                drafts = propose(batch, *args, **kwargs)
                for b, request_id in enumerate(batch.req_ids):
                    slot = states.req_id_to_index[request_id]
                    length, prompt = (
                        int(states.total_len.gpu[slot]),
                        int(states.prompt_len.np[slot]),
                    )
                    ids = states.all_token_ids.gpu[slot, :length].tolist()
                    new = guess(tuple(ids[:prompt]), ids[prompt:], drafts.shape[1])
                    drafts[b] = drafts.new_tensor(new)
                return drafts

            speculator.propose = known

    def with_oracle(base: type) -> type:
        class Worker(base):  # type: ignore[misc, valid-type]
            def init_device(self) -> None:
                super().init_device()
                own = type(self.model_runner)
                self.model_runner.__class__ = type("Oracle" + own.__name__, (OracleMixin, own), {})

        return Worker

    return {"exit": with_oracle(SpecExitWorker), "stock": with_oracle(CPUWorker)}


def schedule_asynchronously(wanted: bool) -> None:
    """Let the CPU platform, which never schedules asynchronously by itself, do so."""
    from vllm.platforms import current_platform

    platform: Any = type(current_platform)
    if not hasattr(platform, "_stock_check"):
        platform._stock_check = platform.check_and_update_config.__func__

    def check(cls: Any, vllm_config: Any) -> None:
        cls._stock_check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    platform.check_and_update_config = classmethod(check)


def outcome(output: Any) -> dict[str, Any]:
    """What a test compares of one request."""
    completion = output.outputs[0]
    logprobs = None
    if completion.logprobs is not None:
        logprobs = [
            [[i, entry.logprob, entry.rank] for i, entry in sorted(at.items())]
            for at in completion.logprobs
        ]
    return {
        "tokens": list(completion.token_ids),
        "logprobs": logprobs,
        "record": (output.kv_transfer_params or {}).get("specexit"),
    }


def run_engine(job: dict[str, Any], name: str) -> dict[str, Any]:
    """All runs of one engine."""
    from vllm import LLM, SamplingParams

    schedule_asynchronously(job["asynchronous"])
    globals()["Worker"] = workers()[job["worker"]]
    arguments = {
        "dtype": "float32",
        "enforce_eager": True,
        "seed": 0,
        "block_size": 32,
        "max_model_len": 128,
        "max_num_seqs": 4,
        "worker_cls": f"{__name__}.Worker",
        **job["arguments"],
    }
    llm = LLM(**arguments)
    config = llm.llm_engine.vllm_config
    assert config.use_v2_model_runner
    assert config.scheduler_config.async_scheduling == job["asynchronous"]
    preempted = count_preemptions(llm)
    results: dict[str, Any] = {}
    for run, requests in job["runs"].items():
        began = time.perf_counter()
        prompts = [{"prompt_token_ids": r["prompt"]} for r in requests]
        params = [
            SamplingParams(
                **{"temperature": 0, "ignore_eos": True, "detokenize": False}
                | {k: v for k, v in r.items() if k != "prompt"}
            )
            for r in requests
        ]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        results[run] = [outcome(o) for o in outputs]
        print(f"{name}/{run}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    stats = llm.collective_rpc("specexit_stats")[0] if job["worker"] == "exit" else {}
    llm.llm_engine.engine_core.shutdown()
    return {"runs": results, "stats": stats, "preemptions": len(preempted)}


def count_preemptions(llm: Any) -> list[str]:
    """A list that grows by the id of each request that is preempted."""
    scheduler, seen = llm.llm_engine.engine_core.engine_core.scheduler, []
    preempt = scheduler._preempt_request

    def counted(request: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(request.request_id)
        return preempt(request, *args, **kwargs)

    scheduler._preempt_request = counted
    return seen


def main(job_path: str, result_path: str) -> None:
    """Run a job file."""
    prepare()
    from tests.engine.oracle import KNOWN

    job = json.loads(Path(job_path).read_text())
    for prompt, output in job["known"]:
        KNOWN.setdefault(tuple(prompt), []).append(output)
    results = {}
    for name, engine in job["engines"].items():
        results[name] = run_engine(engine, name)
        Path(result_path).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
