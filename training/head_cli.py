"""`specexit head check|export|import`: look at a head, change its layout, take one in."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from specexit.cli import parser, set_verbosity
from specexit.errors import CheckpointError, ConfigError
from specexit.files import write_json


def main(argv: list[str]) -> int:
    """Entry point."""
    commands = {"check": check, "export": export, "import": import_}
    if not argv or argv[0] in ("-h", "--help") or argv[0] not in commands:
        p = argparse.ArgumentParser(
            prog="specexit head", description="Check a head, or change its layout."
        )
        sub = p.add_subparsers(dest="command", required=True)
        sub.add_parser("check", help="every tensor there, metadata consistent, fits the target")
        sub.add_parser("export", help="write a copy, in another dtype or the fused layout")
        sub.add_parser("import", help="take in a fused head or a plain EAGLE3 head")
        p.parse_args(argv[:1])
        return 2
    return commands[argv[0]](argv[1:])


def check(argv: list[str]) -> int:
    """`specexit head check HEAD [--target T] [--json F]`: 0 when nothing is wrong."""
    p = parser(
        "head check", "Check a head: tensors, metadata, and whether it fits its target.", json=True
    )
    p.add_argument("head", metavar="HEAD")
    p.add_argument("--target", help="folder or name of the target to compare with")
    args = p.parse_intermixed_args(argv)
    set_verbosity(args)
    facts = describe(Path(args.head), args.target)
    for name, value in facts.items():
        print(f"{name:<20} {json.dumps(value)}")
    if args.json:
        write_json(args.json, facts)
    return 0


def describe(folder: Path, target: str | None = None) -> dict[str, Any]:
    """Facts of a head after all checks.

    Raises:
        CheckpointError: says what is missing or does not fit.
    """
    from specexit.checkpoint import check_target, has_signals, load_signal_head, target_facts
    from specexit.heads.draft import load_draft
    from specexit.heads.eagle3 import Eagle3Head
    from training.features import resolve_target
    from training.fused import is_fused

    if is_fused(folder):
        return {"layout": "fused", "head": str(folder)}
    draft = load_draft(folder, dtype=None)
    method = "eagle3" if isinstance(draft, Eagle3Head) else "mtp"
    stray = sorted(p.name for p in folder.glob("*.safetensors") if p.name != "model.safetensors")
    if stray:
        raise CheckpointError(
            f"head: {folder} has {', '.join(stray)} beside model.safetensors; stock vLLM would "
            "load it too and fail. Move it out"
        )
    facts: dict[str, Any] = {
        "layout": method,
        "parameters": sum(p.numel() for p in draft.parameters()),
        "dtype": str(draft.fc.weight.dtype).removeprefix("torch."),
        "aux_layer_ids": list(draft.config.aux_layer_ids),
        "draft_vocab_size": getattr(draft.config, "draft_vocab_size", draft.config.vocab_size),
        "vocab_size": draft.config.vocab_size,
        "signals": None,
    }
    if has_signals(folder):
        head, metadata = load_signal_head(folder, any_source=True)
        reads = draft.config.in_features
        if metadata.signal_source == "draft":
            reads = draft.config.hidden_size
        if metadata.in_features != reads:
            raise CheckpointError(
                f"head: the signal head reads {metadata.in_features} features, the draft gives "
                f"{reads}"
            )
        if metadata.method != method:
            raise CheckpointError(
                f"head: specexit.json says method {metadata.method}, config.json is of an {method} "
                "draft"
            )
        if method == "eagle3" and metadata.aux_layer_ids != draft.config.aux_layer_ids:
            raise CheckpointError(
                f"head: specexit.json says aux_layer_ids {list(metadata.aux_layer_ids)}, "
                f"config.json says {list(draft.config.aux_layer_ids)}"
            )
        facts["signals"] = {
            "kind": head.kind,
            "rows": head.rows,
            "source": metadata.signal_source,
            "metrics": metadata.metrics,
        }
        if target is not None:
            check_target(metadata, target_facts(resolve_target(target)))
    return facts


def export(argv: list[str]) -> int:
    """`specexit head export HEAD --out DIR [--layout eagle3|fused] [--dtype D]`."""
    p = parser("head export", "Write a copy of a head, in another dtype or layout.", out=True)
    p.add_argument("head", metavar="HEAD")
    p.add_argument(
        "--layout",
        choices=("eagle3", "fused"),
        default="eagle3",
        help="fused: signal rows inside fc.weight, as other implementations store them",
    )
    p.add_argument("--dtype", choices=("keep", "float32", "bfloat16"), default="keep")
    args = p.parse_intermixed_args(argv)
    set_verbosity(args)
    from training.fused import copy_head, write_fused

    _refuse_same(args.head, args.out)
    if args.layout == "fused":
        write_fused(Path(args.head), Path(args.out))
    else:
        copy_head(Path(args.head), Path(args.out), args.dtype)
    print(f"head: {args.out}")
    return 0


def import_(argv: list[str]) -> int:
    """`specexit head import SOURCE --out HEAD --target T`."""
    p = parser(
        "head import",
        "Take in a fused head, or a plain EAGLE3 head (train its signals with "
        "`specexit train signals --draft HEAD`).",
        out=True,
    )
    p.add_argument("head", metavar="SOURCE")
    p.add_argument("--target", default="tiny", help="the head's target (for a fused head)")
    args = p.parse_intermixed_args(argv)
    set_verbosity(args)
    from training.fused import copy_head, is_fused, read_fused

    _refuse_same(args.head, args.out)
    if is_fused(Path(args.head)):
        read_fused(Path(args.head), Path(args.out), args.target)
    else:
        copy_head(Path(args.head), Path(args.out), "keep")
    print(f"head: {args.out}")
    return 0


def _refuse_same(source: str, out: str) -> None:
    if Path(source).resolve() == Path(out).resolve():
        raise ConfigError(f"--out: {out} is the head itself; give another folder")
