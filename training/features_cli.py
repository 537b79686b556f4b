"""`specexit train features`: write a dataset's hidden states through vLLM."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from specexit.cli import parser, set_verbosity
from specexit.dataset import Trace, read_traces
from specexit.errors import ConfigError
from specexit.target_config import read_target_config

_DTYPES = ("keep", "float32", "bfloat16", "float8")


def main(argv: list[str]) -> int:
    """Write `hs_{i}.safetensors` and `index.json` to DIR."""
    p = parser(
        "train features",
        "Write the hidden states of all kept training traces, for features.mode: stored.",
        out=True,
    )
    p.add_argument("--data", metavar="DIR", required=True, help="what `specexit data build` wrote")
    p.add_argument("--target", default="tiny", help="folder or name of the target")
    p.add_argument("--layers", help="auxiliary layer ids, such as 2,18,33; default: as training")
    p.add_argument("--dtype", choices=_DTYPES, default="keep", help="of the stored states")
    p.add_argument("--shard", default="0/1", metavar="i/n", help="write every n-th trace")
    p.add_argument("--yes", action="store_true", help="write even if the disk looks too small")
    args = p.parse_intermixed_args(argv)
    set_verbosity(args)
    written = write_features(
        Path(args.out),
        args.data,
        target=args.target,
        layers=_layers(args.layers),
        dtype=args.dtype,
        shard=args.shard,
        force=args.yes,
        progress=not args.quiet,
    )
    print(f"features: {args.out} ({written} traces)")
    return 0


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--layers: {text!r} is not a list of numbers such as 2,18,33") from None


def write_features(
    out: Path,
    data: str | Path,
    *,
    target: str,
    layers: tuple[int, ...] | None = None,
    dtype: str = "keep",
    shard: str = "0/1",
    force: bool = False,
    progress: bool = True,
) -> int:
    """Run vLLM over the kept traces of the training split.

    Returns:
        Number of traces written.

    Raises:
        ConfigError: nothing to write, or the disk is too small (says the size).
    """
    from specexit.heads.eagle3_config import default_aux_layer_ids
    from training.features import resolve_target
    from training.stored import estimate_gib, parse_shard

    path = resolve_target(target)
    part = parse_shard(shard)
    text = read_target_config(path).get_text_config()
    depth = text.num_hidden_layers
    wanted = sorted({*(layers or default_aux_layer_ids(depth)), depth})
    traces = list(read_traces(data, "train", kept_only=True))[part[0] :: part[1]]
    if not traces:
        raise ConfigError(f"data: {data} has no kept trace in split train for shard {shard}")
    tokens = sum(len(t.prompt_ids) + len(t.output_ids) for t in traces)
    own = 4 if str(getattr(text, "dtype", "")).endswith("float32") else 2
    size = estimate_gib(tokens, len(wanted), text.hidden_size, dtype, own)
    out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(out).free / 2**30
    print(f"{len(traces)} traces, {tokens} tokens, {len(wanted)} layers: {size:.2f} GiB")
    if size * 1.1 > free and not force:
        raise ConfigError(
            f"--out: {out} has {free:.1f} GiB free, the features need {size:.1f} GiB; use "
            "--dtype float8, fewer traces or another disk (--yes writes anyway)"
        )
    return _extract(out, path, traces, tuple(wanted), dtype, part, progress)


def _extract(
    out: Path,
    target: str,
    traces: list[Trace],
    layers: tuple[int, ...],
    dtype: str,
    shard: tuple[int, int],
    progress: bool,
) -> int:
    from specexit.engine_env import base_engine_arguments, has_gpu, prepare_in_process_engine
    from training.stored import FeatureIndex, index_name, read_states, write_states

    prepare_in_process_engine()
    from vllm import LLM, SamplingParams

    longest = max(len(t.prompt_ids) + len(t.output_ids) for t in traces)
    files: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=out, prefix=".partial-") as scratch:
        transfer: dict[str, Any] = {
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": scratch},
        }
        if not has_gpu():
            transfer["kv_connector"] = "CpuHiddenStatesConnector"
            transfer["kv_connector_module_path"] = "training.cpu_connector"
        llm = LLM(
            **base_engine_arguments(target, max_model_len=longest + 2),
            speculative_config={
                "method": "extract_hidden_states",
                "num_speculative_tokens": 1,
                "draft_model_config": {
                    "hf_config": {"eagle_aux_hidden_state_layer_ids": list(layers)}
                },
            },
            kv_transfer_config=transfer,
            enable_prefix_caching=False,
        )
        one = SamplingParams(max_tokens=1, temperature=0)
        for begin in tqdm(range(0, len(traces), 64), desc="features", disable=not progress):
            group = traces[begin : begin + 64]
            prompts = [{"prompt_token_ids": t.prompt_ids + t.output_ids} for t in group]
            outputs = llm.generate(prompts, one, use_tqdm=False)
            llm.llm_engine.step()  # the last file appears only after one more step
            for number, (trace, output) in enumerate(zip(group, outputs, strict=True)):
                source = Path((output.kv_transfer_params or {})["hidden_states_path"])
                states, ids = read_states(source)
                name = f"hs_{(begin + number) * shard[1] + shard[0]}.safetensors"
                write_states(out / name, states, ids, dtype)
                source.unlink()
                files[trace.id] = name
        llm.llm_engine.engine_core.shutdown()
    FeatureIndex(layers, files, target).save(out / index_name(shard))
    return len(files)
