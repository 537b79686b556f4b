"""`dataset_card.md`: what is in a dataset, in words, for whoever finds it later."""

from __future__ import annotations

from typing import Any

from data_build.config import DataSettings
from data_build.outputs import REASONS
from specexit.dataset import SCHEMA


def dataset_card(settings: DataSettings, stats: dict[str, Any]) -> str:
    """The card as Markdown, with the front matter that `datasets` reads."""
    splits = ", ".join(f"{k} {v.get('traces', 0)}" for k, v in stats["splits"].items())
    lines = [
        "---",
        "configs:",
        "- config_name: default",
        "  data_files: data/*.parquet",
        "tags: [reasoning, early-exit, speculative-decoding]",
        "---",
        "",
        "# Labelled reasoning traces",
        "",
        f"Outputs of `{settings.target}` with the point where its thinking was sufficient, made by",
        "`specexit data build`. One row is one trace; `keep` says whether it may train a head.",
        "",
        "```python",
        'datasets.load_dataset("parquet", data_files="data/*.parquet", split="train")',
        "```",
        "",
        f"- traces: {stats['traces']} ({splits}), kept: {stats['kept']}",
        f"- sampling: `{settings.sampling.model_dump()}`",
        f"- trial answers: strategy `{settings.probe.strategy}`"
        + "".join(f", {k}: `{v}`" for k, v in sorted(settings.probe.strategy_by_split.items()))
        + f"; every {settings.probe.every}, min_gap_tokens {settings.probe.min_gap_tokens}",
        f"- confidence label: `{settings.label.confidence}`, "
        f"redundant tail {'kept' if settings.label.keep_redundant else 'cut'}",
        f"- thinking tokens: {stats['thinking_tokens_mean']:.1f} on average, sufficient after "
        f"{stats['t_star_mean']:.1f}",
        f"- tokens computed for trial answers / tokens of the traces: {stats['probe_cost_ratio']}",
        "",
        "## Dropped",
        "",
        *_dropped(stats),
        "",
        "## Columns",
        "",
        "T thinking tokens, K + 1 boundaries; boundary 0 lies right after the think start.",
        "",
        "| column | type | meaning |",
        "|---|---|---|",
        *(
            f"| `{column.name}` | {column.type} | {column.metadata[b'description'].decode()} |"
            for column in SCHEMA
        ),
        "",
        "Splits go by the question's hash (or by the source, where the configuration says so);",
        "no question is in two of them. Labels never read `gold`, except with `require_correct`.",
        "Boundaries that were not probed have no trial answer; the `answer` confidence of their",
        "paragraphs lies on the line between their probed neighbours.",
        "",
    ]
    return "\n".join(lines)


def _dropped(stats: dict[str, Any]) -> list[str]:
    rows = [
        f"- {count} traces `{reason}`: {REASONS.get(reason, '')}"
        for reason, count in stats["drop_reasons"].items()
    ]
    rows += [
        f"- {count} input rows `{reason}`" for reason, count in stats["questions_dropped"].items()
    ]
    return rows or ["Nothing."]
