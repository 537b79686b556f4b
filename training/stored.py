"""Stored hidden states: `hs_{i}.safetensors = {hidden_states [T, layers, H], token_ids [T]}`.

The format is what vLLM's `extract_hidden_states` writes. `index.json` names the layers and maps
each trace to its file. The last layer is the target's last output before the final norm: from it
comes what the draft should say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specexit.errors import ConfigError
from specexit.files import atomic_path, read_json, write_json
from training.examples import Example
from training.features import OnlineTarget
from training.memory import KeptFeatures

INDEX = "index.json"


@dataclass(frozen=True)
class FeatureIndex:
    """Content of `index*.json`.

    Attributes:
        layers: vLLM's auxiliary ids of the stored layers, the target's depth L last.
        files: trace id -> file name.
        target: what wrote them.
    """

    layers: tuple[int, ...]
    files: dict[str, str]
    target: str

    def save(self, path: Path) -> None:
        """Write as JSON."""
        values = {"layers": list(self.layers), "target": self.target, "files": self.files}
        write_json(path, values)


def read_index(folder: Path) -> FeatureIndex:
    """All shards' indices together.

    Raises:
        ConfigError: there is none, or shards disagree about the layers.
    """
    paths = sorted(folder.glob("index*.json"))
    if not paths:
        raise ConfigError(
            f"features.folder: {folder} holds no index.json; write the features with "
            "`specexit train features --data DIR --target T --out DIR`"
        )
    parts = [read_json(p) for p in paths]
    layers = {tuple(p["layers"]) for p in parts}
    if len(layers) > 1:
        raise ConfigError(f"features.folder: shards in {folder} hold different layers: {layers}")
    files: dict[str, str] = {}
    for part in parts:
        files |= part["files"]
    return FeatureIndex(layers.pop(), files, parts[0]["target"])


def write_states(path: Path, states: Tensor, token_ids: Tensor, dtype: str) -> None:
    """Write one file; `float8` stores e4m3 with a scale for each token and layer."""
    tensors = {"token_ids": token_ids.to(torch.int64)}
    if dtype == "float8":
        scale = states.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
        tensors["hidden_states"] = (states.float() / scale).to(torch.float8_e4m3fn)
        tensors["scale"] = scale
    else:
        tensors["hidden_states"] = states if dtype == "keep" else states.to(getattr(torch, dtype))
    with atomic_path(path) as temporary:
        save_file({n: t.contiguous() for n, t in tensors.items()}, str(temporary))


def read_states(path: Path) -> tuple[Tensor, Tensor]:
    """`hidden_states [T, layers, H]` (float8 expanded to bfloat16), `token_ids [T]`."""
    tensors = load_file(str(path))
    states = tensors["hidden_states"]
    if "scale" in tensors:
        states = (states.float() * tensors["scale"]).to(torch.bfloat16)
    return states, tensors["token_ids"]


def open_stored(target: OnlineTarget, folder: Path, examples: Sequence[Example]) -> KeptFeatures:
    """Features of the examples from files; only the target's embedding, norm and head are used.

    Raises:
        ConfigError: a trace has no file, a layer is missing, or a file holds another text.
    """
    index = read_index(folder)
    depth = len(target.model.get_decoder().layers)
    wanted = (*target.aux_layer_ids, depth)
    missing = [i for i in wanted if i not in index.layers]
    if missing:
        raise ConfigError(
            f"features.folder: {folder} holds layers {list(index.layers)}, not {missing}; "
            "set draft.aux_layer_ids to stored ones, or write the features again"
        )
    absent = [e.id for e in examples if e.id not in index.files]
    if absent:
        raise ConfigError(
            f"features.folder: {folder} lacks {len(absent)} of {len(examples)} traces, first "
            f"{absent[0]}; write the remaining shards"
        )
    columns = [index.layers.index(i) for i in target.aux_layer_ids]
    last = index.layers.index(depth)
    norm = target.model.get_decoder().norm

    def read(number: int) -> tuple[Tensor, Tensor]:
        example = examples[number]
        path = folder / index.files[example.id]
        states, token_ids = read_states(path)
        n = len(example)
        if len(token_ids) < n or not torch.equal(token_ids[:n], example.ids):
            raise ConfigError(
                f"features.folder: {path} holds another text than trace {example.id}; token.span "
                "must be full, and the features must be of these data"
            )
        states = states[:n].to(target.embedding.dtype)
        with torch.no_grad():
            final = norm(states[:, last].to(target.embedding.device))
        return states[:, columns].flatten(1), final.cpu()

    return KeptFeatures(target, read)


def estimate_gib(tokens: int, layers: int, hidden_size: int, dtype: str, own_bytes: int) -> float:
    """Size of the files before anything is written."""
    size = {"keep": own_bytes, "float32": 4, "bfloat16": 2, "float8": 1}[dtype]
    return tokens * layers * hidden_size * size / 2**30


def parse_shard(text: str) -> tuple[int, int]:
    """`i/n` -> (i, n), 0 <= i < n."""
    try:
        i, n = (int(part) for part in text.split("/"))
    except ValueError:
        raise ConfigError(f"--shard: {text!r} is not of the form i/n, such as 0/4") from None
    if not 0 <= i < n:
        raise ConfigError(f"--shard: {text!r}: i must be in 0..{n - 1}")
    return i, n


def index_name(shard: tuple[int, int]) -> str:
    """Name of a shard's index."""
    return INDEX if shard[1] == 1 else f"index-{shard[0]:03d}.json"
