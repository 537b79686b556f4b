"""`specexit train eval HEAD --data DIR [--json FILE]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specexit.cli import parser, set_verbosity
from specexit.files import write_json

_ROWS = (
    ("acceptance_length", "acceptance length"),
    ("r2_progress", "R² of progress"),
    ("r2_log_remain", "R² of log(1 + remain)"),
    ("mae_confidence", "mean error of confidence"),
    ("auc_boundary", "AUC, sufficient at boundaries"),
    ("position_auc_boundary", "  position alone"),
    ("ridge_probe_auc_boundary", "  ridge probe, same features"),
    ("auc_derivation_end", "AUC at the derivation's end"),
    ("position_auc_derivation_end", "  position alone"),
    ("ridge_probe_auc_derivation_end", "  ridge probe, same features"),
)


def main(argv: list[str]) -> int:
    """Evaluate a head on held-out traces; prints a table."""
    p = parser("train eval", "Held-out figures of a head, with 95 % intervals.", json=True)
    p.add_argument("head", metavar="HEAD", help="folder of a trained head")
    p.add_argument("--data", metavar="DIR", required=True, help="what `specexit data build` wrote")
    p.add_argument("--target", default="tiny", help="folder or name of the target")
    p.add_argument("--split", choices=("train", "calibration", "test"), default="test")
    p.add_argument("--k", type=int, default=3, help="drafts in one verification step")
    p.add_argument("--limit", type=int, help="use only so many traces")
    args = p.parse_intermixed_args(argv)
    set_verbosity(args)
    from training.evaluate import evaluate_head

    result = evaluate_head(
        Path(args.head),
        args.data,
        target=args.target,
        split=args.split,
        k=args.k,
        limit=args.limit,
        progress=not args.quiet,
    )
    print_table(result)
    if args.json:
        write_json(args.json, result)
    return 0


def print_table(result: dict[str, Any]) -> None:
    """Figures with their intervals, one a line."""
    for key, text in _ROWS:
        if key not in result:
            continue
        value, interval = result[key], result["intervals"].get(key)
        shown = "-" if value is None else f"{value:.3f}"
        span = f"  [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        print(f"{text:<32} {shown:>8}{span}")
    positions = result["acceptance_by_position"]
    steps = ", ".join("-" if x is None else f"{x:.2f}" for x in positions)
    print(f"{'acceptance by position':<32} {steps}")
    print(f"{'n':<32} {', '.join(f'{v} {k}' for k, v in result['n'].items())}")
