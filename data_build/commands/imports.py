"""`specexit data import`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from specexit.cli import parser, set_verbosity


def main(argv: list[str]) -> int:
    """Read existing outputs; with a configuration that names a target, probe them too."""
    p = parser(
        "data import",
        "Read existing outputs (JSONL, also .gz, or Parquet, with a question and an output that "
        "holds <think>...</think>), take them apart and report what is odd, model by model. With "
        "--config, a file as `specexit data build` reads it, they are probed and labelled too.",
        out=True,
        json=True,
    )
    p.add_argument("files", nargs="+", metavar="FILE", help="files or globs")
    p.add_argument("--config", metavar="FILE", help="settings of `specexit data build`")
    p.add_argument("--tokenizer", metavar="T", help="make token ids; default: rows hold text")
    p.add_argument("--contract", metavar="C", help="contract of all records, by name or as JSON")
    p.add_argument("--contracts", metavar="FILE", help="YAML: value of --contract-field: contract")
    p.add_argument("--contract-field", default="kind", metavar="NAME", help="see --contracts")
    p.add_argument("--grade", action="store_true", help="compare the answers with gold")
    p.add_argument("--think-start", metavar="TAG", help="opening tag")
    p.add_argument("--think-end", metavar="TAG", help="closing tag")
    p.add_argument("--batch-size", type=int, default=1000, metavar="N", help="rows of one file")
    args = p.parse_args(argv)
    set_verbosity(args)
    if args.config:
        return _probe(args)
    from data_build.folder import RunFolder
    from data_build.importing import ImportSettings, import_outputs
    from specexit.config import parse
    from specexit.files import write_json

    values: dict[str, Any] = {
        "questions": _sources(args),
        "contract": args.contract,
        "tokenizer": args.tokenizer,
        "think": {"start": args.think_start, "end": args.think_end},
        "batch_size": args.batch_size,
        "grade": args.grade,
    }
    settings = parse(ImportSettings, values)
    with RunFolder(args.out) as folder:
        stats = import_outputs(settings, folder, progress=not args.quiet)
    if args.json:
        write_json(args.json, stats)
    _print(stats)
    return 0


def _sources(args: Any) -> list[dict[str, Any]]:
    from data_build.importing import source_of

    source: dict[str, Any] = {}
    if args.contracts:
        import yaml

        from specexit.errors import ConfigError

        file = Path(args.contracts)
        if not file.is_file():
            raise ConfigError(f"--contracts: no file {file}")
        mapping = yaml.safe_load(file.read_text(encoding="utf-8"))
        source = {"contracts": mapping, "fields": {"contract": args.contract_field}}
    return [{"source": source_of(Path(f)), "path": f, **source} for f in args.files]


def _probe(args: Any) -> int:
    """Hand over to `build` with the files as its questions."""
    from data_build.config import DataSettings
    from data_build.run import run
    from data_build.summary import print_summary
    from specexit.config import load, parse

    settings = load(DataSettings, args.config)
    values = settings.model_dump(mode="json") | {"questions": _sources(args)}
    if args.contract:
        values["contract"] = args.contract
    stats = run(parse(DataSettings, values), args.out, progress=not args.quiet)
    if stats is not None:
        print_summary(stats, args.out)
    return 0


def _print(stats: dict[str, Any]) -> None:
    names = ["records", "kept", *stats["oddities"]]
    table = Table(title=f"{stats['traces']} records, {stats['kept']} usable")
    table.add_column("model")
    for name in names:
        table.add_column(name, justify="right")
    for model, counts in stats["models"].items():
        table.add_row(model, *(str(counts.get(name, 0)) for name in names))
    console = Console()
    console.print(table)
    for reason, count in stats["questions_dropped"].items():
        example = stats["examples"].get(reason, "")
        console.print(f"dropped {count} rows: {reason}  {example}", markup=False)
