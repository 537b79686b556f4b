"""`specexit bench soak`: thousands of short mixed requests through one engine, every one checked.

Policies (exit early, late, with patience, never, off, a hard limit), lengths, aborts, contracts and
arrival order are random. Greedy in fp32, so the truth is known: up to its exit a request must say
what the same prompt says without SpecExit, and after an exit at one place always the same.

JSON: `requests`, `wrong` (outputs that are not as they must be), `leaked` (slots, requests or KV
blocks in use when all is over), `rss_growth_mb` (of the process, from a tenth of the run to its
end), `aborted`, `exits`, `contract_stops`, `seconds`.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tqdm import tqdm

from specexit import cli
from specexit.engine_env import prepare_in_process_engine
from specexit.files import write_json

_LOOSE = {"signals": ["remain"], "thresholds": {"remain": 1e9}}
POLICIES: list[Any] = [
    "off",
    {"thresholds": {"confidence": 1.0}},
    _LOOSE,
    {**_LOOSE, "min_think_tokens": 40},
    {**_LOOSE, "patience": 3},
    {"signals": [], "max_think_tokens": 25},
    {"preset": "reference", **_LOOSE},
]
LENGTH = 160  # most output tokens
AT_ONCE = 16


def main(argv: list[str]) -> int:
    """Run the soak and print what was found; 1 if anything was wrong or leaked."""
    p = cli.parser("bench soak", (__doc__ or "").split("\n")[0], json=True, seed=True)
    p.add_argument("--requests", type=int, default=10000, help="requests in all")
    p.add_argument("--target", help="target model; the built-in reasoner by default")
    p.add_argument("--head", help="head folder; a random one for the target by default")
    args = p.parse_args(argv)
    cli.set_verbosity(args)
    prepare_in_process_engine()
    with tempfile.TemporaryDirectory() as scratch:
        result = _Soak(args, Path(scratch)).run()
    print(", ".join(f"{k} {v}" for k, v in result.items()))
    if args.json:
        write_json(args.json, result)
    return int(bool(result["wrong"] or result["leaked"]))


class _Soak:
    def __init__(self, args: Any, scratch: Path) -> None:
        from vllm import LLM

        from inference.bench.setup import default_target, find_head, tiny_prompts

        self.args, self.rng = args, random.Random(args.seed)
        target = args.target or default_target()
        head = find_head(args.head, target, scratch / "head")
        self.llm = LLM(
            model=target,
            max_model_len=512,
            dtype="float32",
            max_num_seqs=8,
            max_num_batched_tokens=256,
            num_gpu_blocks_override=48,
            block_size=32,
            enforce_eager=True,
            seed=args.seed,
            worker_cls="inference.vllm.SpecExitWorker",
            scheduler_cls="inference.vllm.SpecExitScheduler",
            speculative_config={
                "method": "eagle3",
                "model": str(head),
                "num_speculative_tokens": 3,
            },
        )
        tokenizer = self.llm.get_tokenizer()
        self.prompts = tiny_prompts(tokenizer, 24, args.seed)
        self.end = tokenizer.convert_tokens_to_ids("</think>")
        self.counts: Counter[str] = Counter()
        self.tails: dict[tuple[int, tuple[int, ...]], list[int]] = {}

    def run(self) -> dict[str, Any]:
        """All requests, then the accounts."""
        from vllm import SamplingParams

        began = time.monotonic()
        plain = SamplingParams(temperature=0, max_tokens=LENGTH, extra_args={"specexit": "off"})
        self.base = [
            list(o.outputs[0].token_ids)
            for o in self.llm.generate(self.prompts, plain, use_tqdm=False)
        ]
        engine, total = self.llm.llm_engine, self.args.requests
        running: dict[str, tuple[int, Any, int]] = {}
        sent = 0
        early = None
        with tqdm(total=total, disable=self.args.quiet, unit="request") as bar:
            while sent < total or running:
                while sent < total and len(running) < AT_ONCE:
                    name = f"soak-{sent}"
                    running[name] = self._send(name)
                    sent += 1
                for output in engine.step():
                    if output.finished and output.request_id in running:
                        self._check(output, *running.pop(output.request_id))
                        bar.update()
                if running and self.rng.random() < 0.02:
                    victim = self.rng.choice(list(running))
                    engine.abort_request([victim])
                    del running[victim]
                    self.counts["aborted"] += 1
                    bar.update()
                if early is None and bar.n >= total // 10:
                    early = _rss()
        grown = _rss() - (early or _rss())
        return {
            "requests": total,
            "wrong": self.counts["wrong"],
            "leaked": self._leaked(),
            "rss_growth_mb": round(grown, 1),
            "aborted": self.counts["aborted"],
            "exits": self.counts["exits"],
            "contract_stops": self.counts["contract_stops"],
            "seconds": round(time.monotonic() - began, 1),
        }

    def _send(self, name: str) -> tuple[int, Any, int]:
        from vllm import SamplingParams

        row = self.rng.randrange(len(self.prompts))
        policy, length = self.rng.choice(POLICIES), self.rng.randint(8, LENGTH)
        extra: dict[str, Any] = {"specexit": policy}
        if self.rng.random() < 0.2:
            extra["contract"] = "boxed_integer"
        sampling = SamplingParams(temperature=0, max_tokens=length, extra_args=extra)
        self.llm.llm_engine.add_request(name, self.prompts[row], sampling)
        return row, policy, length

    def _check(self, output: Any, row: int, policy: Any, length: int) -> None:
        """Compare one output with what it must be."""
        completion = output.outputs[0]
        ids, base = list(completion.token_ids), self.base[row][:length]
        record = (output.kv_transfer_params or {}).get("specexit") or {"injected": []}
        by_contract = str(completion.stop_reason).startswith("contract:")
        self.counts["contract_stops"] += by_contract
        injected = [p for p in record["injected"] if p < len(ids)]
        right = len(ids) <= length and all(ids[p] == self.end for p in injected)
        if policy == "off" and record["injected"]:
            right = False
        if not injected:
            right = right and ids == base[: len(ids)] and (by_contract or len(ids) == len(base))
        else:
            at = injected[0]
            self.counts["exits"] += 1
            right = right and ids[:at] == base[:at] and self._same_tail(row, ids, at)
        if not right:
            self.counts["wrong"] += 1

    def _same_tail(self, row: int, ids: list[int], at: int) -> bool:
        """After an exit at one place a prompt always says the same, in whatever batch."""
        key = (row, tuple(ids[: at + 1]))
        tail, known = ids[at + 1 :], self.tails.setdefault(key, [])
        n = min(len(tail), len(known))
        if len(tail) > len(known):
            self.tails[key] = tail
        return tail[:n] == known[:n]

    def _leaked(self) -> int:
        """Slots, requests and KV blocks still in use."""
        from vllm import SamplingParams

        # requests that are done leave the worker with the step after
        last = SamplingParams(max_tokens=1, extra_args={"specexit": "off"})
        self.llm.generate(self.prompts[:1], last, use_tqdm=False)
        stats = self.llm.collective_rpc("specexit_stats")[0]
        scheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        used = max(0, stats["slots_used"] - 1) + max(0, stats["requests_known"] - 1)
        pool = scheduler.kv_cache_manager.block_pool
        blocks = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        return int(used + stats["snapshots"] + len(scheduler.requests) + blocks)


def _rss() -> float:
    """Resident memory of this process, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6
