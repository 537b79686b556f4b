"""One trace in the terminal: every paragraph with its trial answer and labels."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from specexit.dataset import Trace, read_traces
from specexit.errors import ConfigError


def find_trace(folder: str | Path, trace_id: str) -> Trace:
    """The row with an id, or the one at a number (`#12`).

    Raises:
        ConfigError: there is none; names some that exist.
    """
    some: list[str] = []
    for number, trace in enumerate(read_traces(folder)):
        if trace.id == trace_id or trace_id == f"#{number}":
            return trace
        if len(some) < 5:
            some.append(trace.id)
    raise ConfigError(f"--id: no trace {trace_id!r} in {folder}; it has {', '.join(some)}, ...")


def render(trace: Trace, tokenizer: Any) -> RenderableType:
    """A trace as a rich renderable."""
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold")
    head.add_column()
    rows = {
        "id": f"{trace.id}  ({trace.split})",
        "question": trace.question,
        "gold": trace.gold or "-",
        "answer": f"{_plain(trace.answer)}  {_verdict(trace.correct)}",
        "thinking": f"{trace.think_end - trace.think_start} tokens, "
        f"{len(trace.boundaries)} boundaries",
        "k*": "none" if trace.k_star is None else f"{trace.k_star}, after {trace.t_star} tokens",
        "search": trace.search or "-",
        "kept": "yes" if trace.keep else f"no: {trace.drop_reason}",
    }
    for name, value in rows.items():
        head.add_row(name, Text(str(value)))
    return Group(Panel(head, title="trace"), _boundaries(trace, tokenizer))


def _boundaries(trace: Trace, tokenizer: Any) -> Table:
    table = Table(show_lines=False, title="a row is a boundary: what comes before it, the answer")
    for name in ("k", "token", "paragraph", "trial", "agrees", "p", "conf", "progress", "remain"):
        table.add_column(name, justify="left" if name == "paragraph" else "right")
    thinking = trace.thinking_ids
    starts = [0, *trace.boundaries[:-1]]
    for k, (start, end) in enumerate(zip(starts, trace.boundaries, strict=True)):
        text = tokenizer.decode(thinking[start:end], skip_special_tokens=False).strip()
        style = "green" if k == trace.k_star else "dim" if _after(trace, k) else ""
        table.add_row(
            str(k),
            str(end),
            Text(text or "(start)"),
            *_trial(trace, k),
            *_labels(trace, end),
            style=style,
        )
    rest = tokenizer.decode(thinking[trace.boundaries[-1] :], skip_special_tokens=False).strip()
    if rest:
        size = len(thinking)
        cells = [*_trial(trace, None), *_labels(trace, size)]
        table.add_row("end", str(size), Text(rest), *cells, style="dim")
    return table


def _after(trace: Trace, k: int) -> bool:
    return trace.k_star is not None and k > trace.k_star


def _trial(trace: Trace, k: int | None) -> tuple[str, str, str]:
    if k is None:
        return _plain(trace.answer), "", ""
    if not trace.probed[k]:
        return "-", "", ""
    probability = f"{exp(trace.trial_logprob[k]):.2f}"
    return _plain(trace.trial_answers[k]), "✓" if trace.trial_agrees[k] else "✗", probability


def _labels(trace: Trace, end: int) -> tuple[str, str, str]:
    if end == 0 or end > len(trace.progress):
        return "", "", ""
    at = end - 1
    return (
        f"{trace.confidence[at]:.2f}",
        f"{trace.progress[at]:.2f}",
        f"{trace.remain[at]:.0f}",
    )


def _plain(answer: str | None) -> str:
    if answer is None:
        return "none"
    value = json.loads(answer)
    return value if isinstance(value, str) else answer


def _verdict(correct: bool | None) -> str:
    return {True: "(right)", False: "(wrong)", None: ""}[correct]


def show(folder: str | Path, trace_id: str, tokenizer: Any, console: Console) -> None:
    """Print one trace."""
    console.print(render(find_trace(folder, trace_id), tokenizer))
