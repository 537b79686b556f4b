"""Record raw signals in the engine itself: full thinking again, exits off, the worker's record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from inference.study.systems import Engines, System, answer, sampling_params
from specexit.checkpoint import load_metadata
from specexit.dataset import Trace
from specexit.errors import ConfigError
from specexit.replay import ReplayTable

# Thinks to its own end with the signals computed: no token has fewer than 0 tokens to go.
NEVER = {
    "signals": ["remain"],
    "thresholds": {"remain": 0.0},
    "smoothing": {"kind": "none"},
    "max_think_tokens": None,
}
_CHUNK = 128  # requests whose signals the worker holds at once


@dataclass(frozen=True)
class LiveSignals:
    """What the worker recorded of one request.

    Attributes:
        signals: `[T, 3]`, raw.
        steps: `[T]` verification step that accepted each thinking token.
        token_ids: the output.
    """

    signals: np.ndarray
    steps: np.ndarray
    token_ids: list[int]

    def first(self, length: int) -> LiveSignals:
        """Without what drafts beyond the last token had."""
        return replace(self, signals=self.signals[:length], steps=self.steps[:length])


def record_live(
    traces: Sequence[Trace],
    target: str | Path,
    head: str | Path,
    *,
    dtype: str,
    source: Mapping[str, Any],
    num_speculative_tokens: int = 3,
    quiet: bool = False,
) -> ReplayTable:
    """Generate the traces' outputs again and keep the signals.

    Traces whose output differs from the recorded one (ties in bfloat16) are left out and counted.

    Raises:
        ConfigError: more than a tenth of the outputs differ: other weights, dtype or sampling.
    """
    metadata = load_metadata(head)
    engines = Engines(
        target,
        num_speculative_tokens=num_speculative_tokens,
        dtype=dtype,
        additional_config={"specexit": {"record": True}},
    )
    kept: list[Trace] = []
    found: list[LiveSignals] = []
    skipped: dict[str, Counter[str]] = defaultdict(Counter)
    for split, why in source.get("skipped", {}).items():
        skipped[split].update(why)
    try:
        with tqdm(total=len(traces), desc="record live", unit="trace", disable=quiet) as bar:
            for start in range(0, len(traces), _CHUNK):
                chunk = traces[start : start + _CHUNK]
                for trace, live in zip(chunk, run_live(engines, head, chunk), strict=True):
                    if live.token_ids != trace.output_ids:
                        skipped[trace.split]["output differs live"] += 1
                        continue
                    length = trace.think_end - trace.think_start
                    if len(live.signals) < length:  # the last token was never an input
                        skipped[trace.split]["cut off while thinking"] += 1
                        continue
                    kept.append(trace)
                    found.append(live.first(length))
                bar.update(len(chunk))
    finally:
        engines.close()
    differing = sum(why["output differs live"] for why in skipped.values())
    if differing > len(traces) / 10:
        raise ConfigError(
            f"replay record: {differing} of {len(traces)} outputs differ from the data set's; "
            "use the data's target, dtype and greedy sampling"
        )
    left_out = {split: dict(why) for split, why in skipped.items()}
    return ReplayTable.from_traces(
        kept,
        [live.signals for live in found],
        steps=[live.steps for live in found],
        think_end_tokens=len(metadata.think_end_ids),
        step_split=metadata.policy.step_split,
        source={**source, "method": "live", "kind": metadata.kind, "skipped": left_out},
    )


def run_live(engines: Engines, head: str | Path, traces: Sequence[Trace]) -> list[LiveSignals]:
    """Outputs and signals of the traces' prompts, exits off; engines in recording mode."""
    system = System("record", head=Path(head), exits=True, policy=NEVER)
    llm = engines.of(system)
    longest = max(len(t.output_ids) for t in traces)
    params = sampling_params(system, max_tokens=longest)
    answered = answer(llm, [t.prompt_ids for t in traces], [params] * len(traces))
    outputs = [a.token_ids[: len(t.output_ids)] for t, a in zip(traces, answered, strict=True)]
    return take_signals(llm, outputs)


def take_signals(llm: Any, outputs: Sequence[list[int]]) -> list[LiveSignals]:
    """What the worker recorded of the requests that `answer` or `run_timed` ran last.

    Args:
        outputs: token ids of each, in order.
    """
    _tell_worker(llm)
    [records] = llm.llm_engine.collective_rpc("specexit_take_records")
    # the engine appends a random suffix to the ids of the requests, which are 0, 1, 2, ...
    by_place = {int(key.partition("-")[0]): record for key, record in records.items()}
    found = []
    for place, token_ids in enumerate(outputs):
        record = by_place[place]
        counts = record["steps"]
        found.append(
            LiveSignals(
                signals=np.asarray(record["signals"], np.float32).reshape(-1, 3),
                steps=np.repeat(np.arange(len(counts)), counts).astype(np.int32),
                token_ids=token_ids,
            )
        )
    return found


def _tell_worker(llm: Any) -> None:
    """One more step: a worker hears of the requests that finished in the step after."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    params = SamplingParams(max_tokens=1, extra_args={"specexit": "off"})
    engine.add_request("flush", {"prompt_token_ids": [0]}, params)
    while engine.has_unfinished_requests():
        engine.step()
