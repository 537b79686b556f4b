"""What a reasoner can do: accuracy with full thinking, forced exits at every boundary, redundancy.

Uses in-process vLLM (imported inside the function), greedy. An exit is forced as the engine does
it: `prompt + thinking up to the boundary + </think>`, then the model goes on by itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specexit.engine_env import base_engine_arguments, prepare_in_process_engine
from specexit.errors import ConfigError
from specexit.split import StepSplitter
from specexit.think import ThinkFormat
from specexit.tiny.data import Split, questions
from specexit.tiny.tokenizer import prompt_text

MAX_THINKING = 1400
MAX_ANSWER = 24
_BOX = re.compile(r"\\boxed\{(\d{1,3})\}")
_CORRECTION = "I forgot the carry"

Generate = Callable[[Sequence[Sequence[int]], int], list[list[int]]]


@dataclass(frozen=True)
class Probed:
    """One question with the model's trace and its answer at every boundary.

    `boundaries[k]` counts thinking tokens; `forced[k]` is the answer of an exit there. `answer` is
    None where the thinking never ends or no box follows it.
    """

    record: dict[str, Any]
    text: str
    answer: str | None
    thinking_tokens: int
    output_tokens: int
    boundaries: list[int]
    forced: list[str | None]

    @property
    def correct(self) -> bool:
        return self.answer == self.record["gold"]

    @property
    def corrects_itself(self) -> bool:
        return _CORRECTION in self.text

    @property
    def stable(self) -> int | None:
        """Smallest boundary from which on all forced answers equal the full one."""
        k = len(self.forced)
        while k and self.forced[k - 1] == self.answer:
            k -= 1
        return k if k < len(self.forced) and self.answer is not None else None

    @property
    def stable_tokens(self) -> int:
        """Thinking tokens of the exit at `stable`; all of them where there is none."""
        k = self.stable
        return self.thinking_tokens if k is None else self.boundaries[k]


def evaluate(
    model: str | Path,
    *,
    split: Split = "heldout",
    n: int = 1000,
    seed: int = 0,
    dtype: str = "float32",
    quiet: bool = False,
) -> dict[str, Any]:
    """Probe `n` questions of `split` and summarise; see `summary` for the keys."""
    if not (Path(model) / "config.json").is_file():
        raise ConfigError(f"model: no config.json in {model}; give the folder of a model")
    records = questions(split, n, seed)
    generate, tokenizer = engine(model, dtype=dtype, quiet=quiet)
    probed = probe(records, generate, tokenizer)
    return {"model": Path(model).name, "split": split, "seed": seed, "dtype": dtype} | summary(
        probed
    )


def engine(
    model: str | Path, *, dtype: str = "float32", quiet: bool = False
) -> tuple[Generate, Any]:
    """A greedy generator on in-process vLLM, and the model's tokenizer."""
    prepare_in_process_engine()
    from vllm import LLM, SamplingParams

    llm = LLM(
        **base_engine_arguments(str(model), max_model_len=2048),
        dtype=dtype,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        block_size=32,
        enable_prefix_caching=True,
    )

    def generate(prompts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
        sampling = SamplingParams(temperature=0.0, max_tokens=most, detokenize=False)
        inputs = [{"prompt_token_ids": list(ids)} for ids in prompts]
        outputs = llm.generate(inputs, sampling, use_tqdm=not quiet)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return generate, llm.get_tokenizer()


def probe(records: Sequence[dict[str, Any]], generate: Generate, tokenizer: Any) -> list[Probed]:
    """Full greedy traces, then one forced exit at each of their boundaries."""
    think = ThinkFormat.from_tokenizer(tokenizer)
    splitter = StepSplitter.from_tokenizer(tokenizer)
    prompts = [tokenizer.encode(prompt_text(record["question"])) for record in records]
    outputs = generate(prompts, MAX_THINKING)
    spans = [think.locate(prompt, out) for prompt, out in zip(prompts, outputs, strict=True)]
    traces: list[tuple[list[int], list[int], str | None]] = []
    forced_prompts: list[list[int]] = []
    for prompt, out, span in zip(prompts, outputs, spans, strict=True):
        start = span.start if span else len(out)
        end = span.end if span and span.end is not None else len(out)
        thinking = out[start:end]
        boundaries = splitter.boundaries(thinking)
        traces.append((thinking, boundaries, _boxed(tokenizer.decode(out[end:]))))
        head = [*prompt, *out[:start]]
        forced_prompts += [[*head, *thinking[:k], *think.end_ids] for k in boundaries]
    answers = iter(_boxed(tokenizer.decode(ids)) for ids in generate(forced_prompts, MAX_ANSWER))
    return [
        Probed(
            record=record,
            text=tokenizer.decode(thinking),
            answer=answer,
            thinking_tokens=len(thinking),
            output_tokens=len(out),
            boundaries=boundaries,
            forced=[next(answers) for _ in boundaries],
        )
        for record, out, (thinking, boundaries, answer) in zip(
            records, outputs, traces, strict=True
        )
    ]


def summary(probed: Sequence[Probed]) -> dict[str, Any]:
    """Figures over `probed`.

    Keys: `n`, `accuracy` (full thinking), `accuracy_by_family`, `accuracy_by_steps`,
    `finished` (share with an answer), `thinking_tokens` and `longest` (tokens), `paragraphs`,
    `stable_ratio` (tokens up to the smallest stable boundary / all thinking tokens),
    `stable_accuracy` (of the answers there), `corrections` (share of traces that find a mistake),
    `slips` (share of problems that provoke one), `forced` (accuracy of forced exits by boundary
    relative to the expected derivation's end, without and with a slip: `{offset: [accuracy, n]}`).
    """
    return {
        "n": len(probed),
        "accuracy": _mean([p.correct for p in probed]),
        "accuracy_by_family": _by(probed, "family"),
        "accuracy_by_steps": _by(probed, "steps"),
        "accuracy_by_slip": _by(probed, "slip"),
        "finished": _mean([p.answer is not None for p in probed]),
        "thinking_tokens": _mean([p.thinking_tokens for p in probed]),
        "longest": max((p.output_tokens for p in probed), default=0),
        "paragraphs": _mean([len(p.boundaries) for p in probed]),
        "stable_ratio": _mean([p.stable_tokens for p in probed])
        / max(1e-9, _mean([p.thinking_tokens for p in probed])),
        "stable_accuracy": _mean([p.correct for p in probed if p.stable is not None]),
        "slips": _mean([p.record["slip"] for p in probed]),
        "corrections": _mean([p.corrects_itself for p in probed]),
        "corrections_expected": _mean([p.corrects_itself == p.record["slip"] for p in probed]),
        "forced": {
            "no_slip": _forced([p for p in probed if not p.record["slip"]]),
            "slip": _forced([p for p in probed if p.record["slip"]]),
        },
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [f"{key:>22}  {_short(value)}" for key, value in figures.items() if key != "forced"]
    for name, by_offset in figures["forced"].items():
        lines.append(f"forced exits, {name}: boundary relative to the derivation's end")
        lines += [f"{offset:>22}  {acc:.3f}  (n {n})" for offset, (acc, n) in by_offset.items()]
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item[0]:.3f} (n {item[1]})" for key, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _by(probed: Sequence[Probed], field: str) -> dict[str, tuple[float, int]]:
    groups: dict[str, list[bool]] = defaultdict(list)
    for p in probed:
        groups[str(p.record[field])].append(p.correct)
    return {key: (_mean(groups[key]), len(groups[key])) for key in sorted(groups)}


def _forced(probed: Sequence[Probed]) -> dict[str, tuple[float, int]]:
    groups: dict[int, list[bool]] = defaultdict(list)
    for p in probed:
        for k, answer in enumerate(p.forced):
            groups[k - p.record["derivation_end"]].append(answer == p.record["gold"])
    return {f"{key:+d}": (_mean(groups[key]), len(groups[key])) for key in sorted(groups)}


def _boxed(text: str) -> str | None:
    match = _BOX.search(text)
    return match.group(1) if match else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
