"""`specexit bench overhead`: what SpecExit costs where it never exits, against stock EAGLE3.

Two engines in one process, stock and ours, take turns on the same prompts; ours looks at every
thinking token and never exits, so both do the same steps. CPU time of the process is compared
within a pair only, since timings drift.

JSON: `batches: [{batch, compiled, cpu_ratio_median, cpu_ratio_min, cpu_ratio_max, ms_per_step,
hook_us_per_step, steps}]` (ratio = stock / ours, 1 is free; `ms_per_step` is CPU time of ours;
`hook_us_per_step` is the part inside the exit rule, wall time), `aten_ops` (mean number of ATen
operations of the exit rule in a step, batch 1, eager).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specexit import cli
from specexit.engine_env import prepare_in_process_engine
from specexit.files import write_json


def main(argv: list[str]) -> int:
    """Measure and print."""
    p = cli.parser("bench overhead", __doc__.split("\n")[0], json=True, seed=True)
    p.add_argument("--target", help="target model; the built-in reasoner by default")
    p.add_argument("--head", help="head folder; a random one for the target by default")
    p.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="requests at once")
    p.add_argument("--repetitions", type=int, default=12, help="pairs for each figure")
    p.add_argument("--tokens", type=int, default=128, help="output tokens of each request")
    p.add_argument("--drafts", type=int, default=3, help="num_speculative_tokens")
    p.add_argument(
        "--modes",
        nargs="+",
        choices=["eager", "compiled"],
        default=["eager", "compiled"],
        help="with and without vLLM's compilation",
    )
    args = p.parse_args(argv)
    cli.set_verbosity(args)
    prepare_in_process_engine()
    rows: list[dict[str, Any]] = []
    ops = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for mode in args.modes:
            pair = _Pair(args, Path(scratch), compiled=mode == "compiled")
            for batch in args.batches:
                rows.append(pair.measure(batch))
                _print(rows[-1])
            if mode == "eager" or not ops:
                ops = pair.count_ops()
            pair.close()
    print(f"ATen operations of the exit rule in a step: {ops:.1f}")
    if args.json:
        write_json(args.json, {"batches": rows, "aten_ops": ops})
    return 0


class _Pair:
    """A stock engine and ours, same target and draft."""

    def __init__(self, args: Any, scratch: Path, *, compiled: bool) -> None:
        from vllm import LLM

        from inference.bench.setup import default_target, find_head, tiny_prompts

        self.args, self.compiled = args, compiled
        target = args.target or default_target()
        head = find_head(args.head, target, scratch / "head")
        common: dict[str, Any] = {
            "model": target,
            "max_model_len": 1024,
            "max_num_seqs": max(args.batches),
            "seed": args.seed,
            "enforce_eager": not compiled,
            "speculative_config": {
                "method": "eagle3",
                "model": str(head),
                "num_speculative_tokens": args.drafts,
            },
            "enable_prefix_caching": False,
        }
        self.stock = LLM(**common)
        self.ours = LLM(
            **common,
            worker_cls="inference.vllm.SpecExitWorker",
            scheduler_cls="inference.vllm.SpecExitScheduler",
        )
        self.prompts = tiny_prompts(self.ours.get_tokenizer(), max(args.batches), args.seed)

    def generate(self, llm: Any, batch: int) -> tuple[float, list[list[int]]]:
        """CPU seconds, and the outputs."""
        from vllm import SamplingParams

        from inference.bench.setup import NEVER

        extra = {"specexit": NEVER} if llm is self.ours else None
        sampling = SamplingParams(
            temperature=0, max_tokens=self.args.tokens, ignore_eos=True, extra_args=extra
        )
        with _front_end(llm is self.ours):
            began = time.process_time()
            outputs = llm.generate(self.prompts[:batch], sampling, use_tqdm=False)
            spent = time.process_time() - began
        return spent, [list(o.outputs[0].token_ids) for o in outputs]

    def measure(self, batch: int) -> dict[str, Any]:
        """One row of the result."""
        for llm in (self.stock, self.ours):
            self.generate(llm, batch)
        ratios, ours_seconds = [], 0.0
        before = self.ours.collective_rpc("specexit_stats")[0]
        for i in range(self.args.repetitions):
            order = (self.stock, self.ours) if i % 2 else (self.ours, self.stock)
            spent = {id(llm): self.generate(llm, batch) for llm in order}
            stock, ours = spent[id(self.stock)], spent[id(self.ours)]
            if stock[1] != ours[1]:
                raise AssertionError("never-exit changed the output")
            ratios.append(stock[0] / ours[0])
            ours_seconds += ours[0]
        after = self.ours.collective_rpc("specexit_stats")[0]
        steps = sum(after.get(k, 0) - before.get(k, 0) for k in ("steps", "steps_skipped"))
        hook = after["step_microseconds"] - before["step_microseconds"]
        return {
            "batch": batch,
            "compiled": self.compiled,
            "cpu_ratio_median": statistics.median(ratios),
            "cpu_ratio_min": min(ratios),
            "cpu_ratio_max": max(ratios),
            "ms_per_step": 1000 * ours_seconds / steps,
            "hook_us_per_step": hook / steps,
            "steps": steps,
        }

    def count_ops(self) -> float:
        """Mean number of ATen operations that the exit rule adds to a step."""
        from torch.utils._python_dispatch import TorchDispatchMode

        from inference.bench.setup import runner_of

        class Counter(TorchDispatchMode):
            count = 0

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                Counter.count += 1
                return func(*args, **(kwargs or {}))

        runner = runner_of(self.ours)
        inner, steps = runner._specexit_edit, 0

        def counted(*args: Any) -> None:
            nonlocal steps
            steps += 1
            with Counter():
                inner(*args)

        runner._specexit_edit = counted
        try:
            self.generate(self.ours, 1)
        finally:
            del runner._specexit_edit
        return Counter.count / max(steps, 1)

    def close(self) -> None:
        """Free both engines."""
        for llm in (self.stock, self.ours):
            llm.llm_engine.engine_core.shutdown()
        del self.stock, self.ours


@contextmanager
def _front_end(with_plugin: bool) -> Iterator[None]:
    """Take the plug-in's wrappers off the front end while the stock engine runs."""
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.output_processor import RequestState

    if with_plugin:
        yield
        return
    kept: list[tuple[Any, str, Any]] = []
    for owner, name in (
        (InputProcessor, "_validate_params"),
        (RequestState, "make_request_output"),
    ):
        wrapped = getattr(owner, name)
        plain = wrapped
        while hasattr(plain, "__wrapped__"):
            plain = plain.__wrapped__
        kept.append((owner, name, wrapped))
        setattr(owner, name, plain)
    try:
        yield
    finally:
        for owner, name, wrapped in kept:
            setattr(owner, name, wrapped)


def _print(row: dict[str, Any]) -> None:
    mode = "compiled" if row["compiled"] else "eager"
    print(
        f"batch {row['batch']:>2}, {mode:<8}: CPU time stock / ours "
        f"{row['cpu_ratio_median']:.4f} "
        f"({row['cpu_ratio_min']:.4f} to {row['cpu_ratio_max']:.4f}), "
        f"{row['ms_per_step']:.2f} ms a step, exit rule {row['hook_us_per_step']:.0f} us of it"
    )
