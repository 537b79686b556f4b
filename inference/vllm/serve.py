"""`specexit serve TARGET --head HEAD [flags of vllm serve]`: fills in what the head already says.

It prints the `vllm serve` command that it runs; every flag it sets can be given by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inference.vllm.cpu_environment import cpu_environment
from inference.vllm.settings import KEY, server_policy
from specexit.checkpoint import FOLDER, HeadMetadata, check_target, load_metadata, target_facts
from specexit.cli import parser
from specexit.engine_env import has_gpu
from specexit.errors import ConfigError

WORKER = "inference.vllm.SpecExitWorker"
SCHEDULER = "inference.vllm.SpecExitScheduler"
DEFAULT_DRAFTS = 3

# model_type -> vLLM's reasoning parser, for models whose thinking has tags.
REASONING_PARSERS = {
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "qwen3_next": "qwen3",
    "qwen3_5": "qwen3",
    "deepseek_v3": "deepseek_r1",
    "llama": "deepseek_r1",  # R1-Distill and its relatives
    "qwen2": "deepseek_r1",
    "glm4_moe": "glm45",
    "seed_oss": "seed_oss",
    "mimo": "mimo",
    "minimax_m2": "minimax_m2",
    "olmo3": "olmo3",
}


@dataclass(frozen=True)
class Command:
    """What is run: `vllm serve` and its arguments, and variables added to the environment."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        """One line for a shell."""
        variables = [f"{k}={shlex.quote(v)}" for k, v in self.environment.items()]
        return " ".join([*variables, "vllm serve", *map(shlex.quote, self.arguments)])


def main(argv: list[str]) -> int:
    """Run the command; replaces this process by vLLM's."""
    args, rest = _parser().parse_known_args(argv)
    command = build(args, rest)
    print(command, flush=True)
    if not args.dry_run:
        os.execve(*_program(command))  # does not return
    return 0


def build(args: argparse.Namespace, rest: Sequence[str] = ()) -> Command:
    """The `vllm serve` command for parsed arguments; `rest` is passed on as it is.

    Raises:
        CheckpointError: the head has no signals, or belongs to another target.
        ConfigError: a policy setting is wrong.
    """
    metadata = load_metadata(_head_folder(args.head))
    if Path(args.target).is_dir():  # a hub name is checked by the worker, once it is there
        check_target(metadata, target_facts(args.target), weights=False)
    given = _given(rest)
    additional = _additional(args, metadata)
    speculative = {
        "method": metadata.method,
        "model": args.head,
        "num_speculative_tokens": args.num_speculative_tokens,
    }
    flags: dict[str, str] = {
        "--worker-cls": WORKER,
        "--scheduler-cls": SCHEDULER,
        "--speculative-config": json.dumps(speculative),
    }
    if additional:
        flags["--additional-config"] = json.dumps(additional)
    reasoning = REASONING_PARSERS.get(metadata.target.model_type)
    if reasoning is not None:
        flags["--reasoning-parser"] = reasoning
    elif "--reasoning-parser" not in given:
        print(
            f"specexit serve: no reasoning parser is known for {metadata.target.model_type!r}; "
            "give --reasoning-parser to have the thinking apart in chat responses",
            file=sys.stderr,
        )
    own = [part for name, value in flags.items() if name not in given for part in (name, value)]
    environment = {} if has_gpu() else cpu_environment(os.environ)
    return Command((args.target, *own, *rest), environment)


def _parser() -> argparse.ArgumentParser:
    p = parser(
        "serve",
        "Serve a target and its head with vLLM. Flags that are not listed here go to `vllm serve` "
        "unchanged, and win over those that this command fills in.",
    )
    p.usage = "specexit serve TARGET --head HEAD [options] [flags of vllm serve]"
    p.allow_abbrev = False  # `--headless` is vLLM's
    p.add_argument("target", metavar="TARGET", help="model folder or hub name")
    p.add_argument("--head", metavar="HEAD", required=True, help="head folder or hub name")
    p.add_argument(
        "--num-speculative-tokens", type=int, default=DEFAULT_DRAFTS, metavar="K", help="drafts"
    )
    p.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override the head's policy, such as thresholds.remain=50 or enabled=false; may be "
        "given several times",
    )
    p.add_argument(
        "--additional-config", metavar="JSON", help="as vLLM's; --policy is merged into it"
    )
    p.add_argument("--dry-run", action="store_true", help="print the command and stop")
    return p


def _additional(args: argparse.Namespace, metadata: HeadMetadata) -> dict[str, Any]:
    """`additional_config` with the policy overrides, checked against the head's policy."""
    try:
        additional = json.loads(args.additional_config or "{}")
    except ValueError as error:
        raise ConfigError(f"--additional-config: not valid JSON: {error}") from None
    if not isinstance(additional, dict):
        raise ConfigError(f"--additional-config: {additional!r} is not an object")
    changes = dict(additional.get(KEY) or {})
    for item in args.policy:
        key, equals, text = item.partition("=")
        if not key or not equals:
            raise ConfigError(f"--policy {item!r}: write it as key=value")
        section = changes
        *parents, last = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = yaml.safe_load(text)
    server_policy({KEY: changes}, metadata.policy)
    return {**additional, KEY: changes} if changes else additional


def _head_folder(head: str) -> Path:
    """The head's folder; of a hub name only the `specexit` subfolder is fetched."""
    folder = Path(head)
    if folder.is_dir() or head.startswith((".", "/", "~")):
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(head, allow_patterns=[f"{FOLDER}/*"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"--head: {head!r} is neither a folder nor a hub repository that can be read ({error})"
        ) from None


def _given(rest: Sequence[str]) -> set[str]:
    """Names of the flags in the passed-on arguments."""
    return {part.split("=", 1)[0].replace("_", "-") for part in rest if part.startswith("--")}


def _program(command: Command) -> tuple[str, list[str], dict[str, str]]:
    """Arguments of `execve`: this environment's vLLM, whatever PATH says."""
    arguments = ["-m", "vllm.entrypoints.cli.main", "serve", *command.arguments]
    return sys.executable, [sys.executable, *arguments], {**os.environ, **command.environment}
