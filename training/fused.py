"""The fused layout of other implementations: signal rows appended to `fc.weight`.

`fc.weight [H + D, F]` (D = 3 for `linear`), and where the head has them `fc.bias [H + D]` (zero for
the token rows) and `signal_readout.*`. Stock engines cannot load it (shape error); it is for
exchange only.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from specexit.checkpoint import (
    FOLDER,
    HeadMetadata,
    has_signals,
    load_signal_head,
    save_signal_head,
    target_facts,
    tensor_shapes,
)
from specexit.errors import CheckpointError
from specexit.files import atomic_path, read_json, write_json
from specexit.heads.draft import is_eagle3, load_draft
from specexit.heads.eagle3 import WEIGHTS, Eagle3Head
from specexit.heads.signal import SignalHead
from specexit.think import ThinkFormat
from training.features import resolve_target

_READOUT = "signal_readout."


def is_fused(folder: Path) -> bool:
    """Whether `fc.weight` has more rows than the draft is wide."""
    if not (folder / WEIGHTS).is_file() or not (folder / "config.json").is_file():
        raise CheckpointError(f"head: {folder} holds no {WEIGHTS} and config.json")
    shapes = tensor_shapes(folder / WEIGHTS)
    width = read_json(folder / "config.json").get("hidden_size")
    return "fc.weight" in shapes and shapes["fc.weight"][0] > (width or 0)


def write_fused(head: Path, out: Path) -> None:
    """Merge draft and signal head into one file."""
    if not is_eagle3(head):
        raise CheckpointError(f"head: {head} is an MTP head; the fused layout is EAGLE3's")
    signals, metadata = load_signal_head(head)
    Eagle3Head.load(head)  # complete, or refused
    tensors = load_file(str(head / WEIGHTS))
    rows = signals.projection.weight
    weight = tensors["fc.weight"]
    # fp32: the signal rows would lose precision in bf16
    tensors["fc.weight"] = torch.cat([weight.float(), rows.float()])
    tensors["fc.bias"] = torch.cat([torch.zeros(len(weight)), signals.projection.bias.float()])
    for name, value in signals.state_dict().items():
        if not name.startswith("projection."):
            tensors[_READOUT + name] = value.float()
    out.mkdir(parents=True, exist_ok=True)
    with atomic_path(out / WEIGHTS) as temporary:
        save_file({n: t.contiguous() for n, t in tensors.items()}, str(temporary))
    config = read_json(head / "config.json")
    config["specexit"] = metadata.model_dump(mode="json")
    write_json(out / "config.json", config)


def read_fused(source: Path, out: Path, target: str) -> None:
    """Split a fused head. A head without our metadata is the published three-row kind; its facts
    then come from the target."""
    tensors = load_file(str(source / WEIGHTS))
    config = read_json(source / "config.json")
    H = config["hidden_size"]
    weight = tensors["fc.weight"]
    extra = weight.shape[0] - H
    bias = tensors.pop("fc.bias", torch.zeros(weight.shape[0]))
    if bool(bias[:H].any()):
        raise CheckpointError(
            f"head: {source} has a bias on the token rows of fc; engines have none"
        )
    saved = config.pop("specexit", None)
    if saved is not None:
        metadata = HeadMetadata.model_validate(saved)
    elif extra == 3:
        metadata = _metadata(config, weight.shape[1], target)
    else:
        raise CheckpointError(
            f"head: {source} has {extra} signal rows and no metadata; only the three-row kind can "
            "be taken in without it"
        )
    signals = SignalHead(
        metadata.kind,
        metadata.in_features,
        rows=metadata.rows,
        readout_size=metadata.readout_size,
    )
    state = {n.removeprefix(_READOUT): t for n, t in tensors.items() if n.startswith(_READOUT)}
    state |= {"projection.weight": weight[H:].float(), "projection.bias": bias[H:].float()}
    signals.load_state_dict(state)
    kept = {n: t for n, t in tensors.items() if not n.startswith(_READOUT)}
    kept["fc.weight"] = weight[:H].to(tensors["lm_head.weight"].dtype).contiguous()
    out.mkdir(parents=True, exist_ok=True)
    with atomic_path(out / WEIGHTS) as temporary:
        save_file(kept, str(temporary), metadata={"format": "pt"})
    write_json(out / "config.json", config)
    save_signal_head(out, signals, metadata)
    Eagle3Head.load(out)


def copy_head(head: Path, out: Path, dtype: str) -> None:
    """Load (and so check) a head, write it in our layout, with its signals where it has some."""
    draft = load_draft(head, dtype=None)
    draft.save(out, dtype=draft.fc.weight.dtype if dtype == "keep" else getattr(torch, dtype))
    if has_signals(head):
        save_signal_head(out, *load_signal_head(head, any_source=True))
        provenance = head / FOLDER / "provenance.json"
        if provenance.is_file():
            shutil.copyfile(provenance, out / FOLDER / "provenance.json")


def _metadata(config: dict[str, object], in_features: int, target: str) -> HeadMetadata:
    from transformers import AutoTokenizer

    from specexit.heads.eagle3_config import Eagle3Config

    path = resolve_target(target)
    think = ThinkFormat.from_tokenizer(AutoTokenizer.from_pretrained(path))
    return HeadMetadata(
        kind="linear",
        rows=3,
        in_features=in_features,
        aux_layer_ids=Eagle3Config.from_json(config).aux_layer_ids,
        think_start_ids=think.start_ids,
        think_end_ids=think.end_ids,
        target=target_facts(path),
    )
