"""A trained head on disk: a plain EAGLE3/MTP draft for stock vLLM, and `specexit/` inside it.

    HEAD/config.json, model.safetensors        what stock vLLM and SGLang read
    HEAD/specexit/specexit.json                `HeadMetadata`
    HEAD/specexit/signal_head.safetensors      the signal head's tensors, fp32
    HEAD/specexit/provenance.json

Stock loaders do not look into the subfolder, so the same folder serves with and without SpecExit.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from specexit.config import Settings, parse
from specexit.errors import CheckpointError
from specexit.files import atomic_path, read_json, write_json
from specexit.heads.signal import Kind, SignalHead
from specexit.policy import ExitPolicy
from specexit.target_config import read_target_config
from specexit.think import ThinkFormat

FORMAT_VERSION = 1
FOLDER = "specexit"
_SAMPLE = 1 << 20  # bytes hashed at each end of a weight file


class TargetFacts(Settings):
    """What a head must find in the target it was trained for."""

    model_type: str
    """`config.model_type`, such as qwen3 or llama."""
    hidden_size: int
    """H, the width of the hidden states."""
    num_hidden_layers: int
    """Number of decoder layers."""
    vocab_size: int
    """Size of the embedding table."""
    fingerprint: str | None = None
    """Digest of the weights (`target_fingerprint`); None where they were not local."""


class HeadMetadata(Settings):
    """`specexit.json`."""

    format_version: Literal[1] = 1
    """Version of this layout."""
    method: Literal["eagle3", "mtp"] = "eagle3"
    """vLLM's speculative method of the draft."""
    kind: Kind
    """Form of the signal head."""
    signal_source: Literal["features", "draft"] = "features"
    """What the signal head reads: what the draft's input projection reads, or (an ablation, which
    no engine serves) the draft layer's own output."""
    rows: int
    """D, output rows of the projection."""
    readout_size: int = 64
    """Hidden width of the readout MLP (`mlp`, `memory`)."""
    in_features: int
    """Width of the features that the projection reads."""
    aux_layer_ids: tuple[int, ...] = ()
    """vLLM's auxiliary layer ids (EAGLE3)."""
    think_start_ids: tuple[int, ...]
    """Token ids that open the thinking; empty if the model never writes one."""
    think_end_ids: tuple[int, ...]
    """Token ids that close it; the engine injects them."""
    policy: ExitPolicy = ExitPolicy()
    """Default policy, with calibrated thresholds where there are some."""
    target: TargetFacts
    """The target that the head belongs to."""
    data_hash: str | None = None
    """Digest of the training data."""
    metrics: dict[str, Any] = Field(default_factory=dict)
    """Held-out figures of the training run."""
    calibration: dict[str, Any] | None = None
    """Certificate of the thresholds: epsilon, delta, n and the method."""

    @property
    def think(self) -> ThinkFormat:
        """The think format as an object."""
        return ThinkFormat(self.think_start_ids, self.think_end_ids)


def save_signal_head(head_folder: str | Path, head: SignalHead, metadata: HeadMetadata) -> None:
    """Write the `specexit/` subfolder of a head, tensors first, each file atomically."""
    folder = Path(head_folder) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().float().cpu().contiguous() for k, v in head.state_dict().items()}
    with atomic_path(folder / "signal_head.safetensors") as temporary:
        save_file(tensors, str(temporary), metadata={"format": "pt", "kind": head.kind})
    save_metadata(head_folder, metadata)


def save_metadata(head_folder: str | Path, metadata: HeadMetadata) -> None:
    """Write `specexit.json` alone, as calibration does."""
    write_json(Path(head_folder) / FOLDER / "specexit.json", metadata.model_dump(mode="json"))


def has_signals(head_folder: str | Path) -> bool:
    """Whether a head folder carries SpecExit's subfolder."""
    return (Path(head_folder) / FOLDER / "specexit.json").is_file()


def load_metadata(head_folder: str | Path) -> HeadMetadata:
    """Read `specexit.json`.

    Raises:
        CheckpointError: the file is missing.
        ConfigError: it has unknown or invalid entries.
    """
    path = Path(head_folder) / FOLDER / "specexit.json"
    if not path.is_file():
        raise CheckpointError(
            f"head: {head_folder} has no {FOLDER}/specexit.json; it is a plain draft head. "
            "Train signals for it (`specexit train`), or serve it without SpecExit"
        )
    return parse(HeadMetadata, read_json(path), where=f"{path}: ")


def load_signal_head(
    head_folder: str | Path, *, any_source: bool = False
) -> tuple[SignalHead, HeadMetadata]:
    """Read the signal head of a folder, in eval mode on the CPU.

    Args:
        any_source: also one that reads the draft layer's output, which can only be evaluated.

    Raises:
        CheckpointError: a file or a tensor is missing, surplus, or of another shape, or the head
            cannot be served.
    """
    metadata = load_metadata(head_folder)
    if metadata.signal_source != "features" and not any_source:
        raise CheckpointError(
            f"head: the signals of {head_folder} read the draft layer's own output "
            "(signals.source: draft), which is known only after a token was accepted. This is an "
            "ablation for `specexit train eval`; train with signals.source: features to serve"
        )
    path = Path(head_folder) / FOLDER / "signal_head.safetensors"
    if not path.is_file():
        raise CheckpointError(f"head: {path} is missing; export the head again")
    head = SignalHead(
        metadata.kind,
        metadata.in_features,
        rows=metadata.rows,
        readout_size=metadata.readout_size,
    )
    tensors = load_file(str(path))
    expected = {name: tuple(t.shape) for name, t in head.state_dict().items()}
    found = {name: tuple(t.shape) for name, t in tensors.items()}
    if expected != found:
        wrong = [
            f"{name}: {found.get(name, 'missing')}, expected {expected.get(name, 'nothing')}"
            for name in sorted(expected.keys() | found.keys())
            if expected.get(name) != found.get(name)
        ]
        raise CheckpointError(f"head: {path} does not fit its metadata: " + "; ".join(wrong))
    head.load_state_dict(tensors)
    return head.eval().requires_grad_(False), metadata


def target_facts(target: str | Path, config: Any = None) -> TargetFacts:
    """Facts of a target from its folder (and its `transformers` config, read where not given)."""
    if config is None:
        config = read_target_config(target)
    text = config.get_text_config()
    return TargetFacts(
        model_type=text.model_type,
        hidden_size=text.hidden_size,
        num_hidden_layers=text.num_hidden_layers,
        vocab_size=text.vocab_size,
        fingerprint=target_fingerprint(target),
    )


def target_fingerprint(target: str | Path) -> str | None:
    """Digest of a local target's weights: name, size and both ends of every safetensors file.

    Returns:
        16 hex digits, or None if `target` is not a folder with safetensors files (a hub name).
    """
    files = sorted(Path(target).glob("*.safetensors")) if Path(target).is_dir() else []
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}:".encode())
        with file.open("rb") as f:
            digest.update(f.read(_SAMPLE))
            if size > _SAMPLE:
                f.seek(max(_SAMPLE, size - _SAMPLE))
                digest.update(f.read(_SAMPLE))
    return digest.hexdigest()[:16]


def check_target(metadata: HeadMetadata, found: TargetFacts, *, weights: bool = True) -> None:
    """Refuse a head that was trained for another target.

    Args:
        weights: also compare the weights' fingerprints, where both are known.

    Raises:
        CheckpointError: says every difference.
    """
    expected = metadata.target
    names = ["model_type", "hidden_size", "num_hidden_layers", "vocab_size"]
    if weights and expected.fingerprint and found.fingerprint:
        names.append("fingerprint")
    different = [
        f"{name} is {getattr(found, name)!r}, the head expects {getattr(expected, name)!r}"
        for name in names
        if getattr(found, name) != getattr(expected, name)
    ]
    deepest = max(metadata.aux_layer_ids, default=0)
    if deepest > found.num_hidden_layers:
        different.append(
            f"aux_layer_ids needs layer {deepest}, the target has {found.num_hidden_layers}"
        )
    if different:
        raise CheckpointError(
            "head: it was trained for another target: "
            + "; ".join(different)
            + ". Serve it with its own target, or set specexit.check_target: false where only "
            "the weights' digest differs (a quantised copy)"
        )


def tensor_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file, without reading the tensors."""
    with safe_open(str(path), framework="pt") as f:
        return {name: tuple(f.get_slice(name).get_shape()) for name in f.keys()}  # noqa: SIM118
