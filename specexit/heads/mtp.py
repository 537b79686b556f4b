"""MTP drafts: what their input projection reads, per model family, and MiMo's layer in full.

An MTP layer at row p pairs the target's last hidden state h_p with the embedding e of token p + 1.
Both are normed and concatenated; a projection of `[2H -> H]` reads that, and so does the signal
head (DESIGN section 2). Names and order differ per family, as in vLLM's `mimo_mtp.py`,
`deepseek_mtp.py`, `glm4_moe_mtp.py`, `qwen3_next_mtp.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor, nn

from specexit.errors import CheckpointError, ConfigError
from specexit.files import read_json
from specexit.heads.cache import DraftCache, attend
from specexit.heads.eagle3 import Proposal
from specexit.heads.layers import Attention, GatedMLP, RMSNorm, Rope


@dataclass(frozen=True)
class MtpFamily:
    """How a family's MTP input is made.

    Attributes:
        prefix: of the layer's weights; `{layer}` is the number of decoder layers.
        embedding_norm, hidden_norm, projection: names under the prefix.
        order: which half comes first in the projection's input.
        hidden: whether h is the last layer's output `before` or `after` the target's final norm.
        zero_based: norm weights are stored as w - 1 (Gemma's and Qwen3-Next's norm).
    """

    prefix: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    order: Literal["hidden_first", "embedding_first"]
    hidden: Literal["before", "after"] = "after"
    zero_based: bool = False


_EH_PROJ = MtpFamily("model.layers.{layer}", "enorm", "hnorm", "eh_proj", "embedding_first")
_FC = MtpFamily(
    "mtp",
    "pre_fc_norm_embedding",
    "pre_fc_norm_hidden",
    "fc",
    "embedding_first",
    zero_based=True,
)
FAMILIES: Mapping[str, MtpFamily] = {
    "mimo": MtpFamily(
        "model.mtp_layers.0",
        "token_layernorm",
        "hidden_layernorm",
        "input_proj",
        "hidden_first",
        hidden="before",
    ),
    "deepseek_v3": _EH_PROJ,
    "deepseek_v32": _EH_PROJ,
    "glm4_moe": _EH_PROJ,
    "qwen3_next": _FC,
    "qwen3_5": _FC,
    "qwen3_5_moe": _FC,
}


def family_of(model_type: str) -> MtpFamily:
    """The family of a target.

    Raises:
        ConfigError: its MTP is not known here.
    """
    if model_type not in FAMILIES:
        raise ConfigError(
            f"draft.method: mtp is not known for model_type {model_type!r} "
            f"(known: {', '.join(sorted(FAMILIES))}); use method eagle3"
        )
    return FAMILIES[model_type]


class MtpInput(nn.Module):
    """The normed, concatenated input of an MTP layer's projection, frozen.

    Args:
        embedding_weight, hidden_weight: `[H]`, effective weights of the two norms.
    """

    embedding_weight: Tensor
    hidden_weight: Tensor

    def __init__(
        self, family: MtpFamily, embedding_weight: Tensor, hidden_weight: Tensor, eps: float
    ) -> None:
        super().__init__()
        self.family, self.eps = family, eps
        self.register_buffer("embedding_weight", embedding_weight.float())
        self.register_buffer("hidden_weight", hidden_weight.float())

    @classmethod
    def load(cls, target: str | Path, config: Any) -> MtpInput:
        """From the target's own checkpoint.

        Raises:
            CheckpointError: it has no MTP layer.
        """
        text = config.get_text_config()
        family = family_of(text.model_type)
        prefix = family.prefix.format(layer=text.num_hidden_layers)
        names = [f"{prefix}.{n}.weight" for n in (family.embedding_norm, family.hidden_norm)]
        norms = [tensor.float() + float(family.zero_based) for tensor in _read(target, names)]
        return cls(family, norms[0], norms[1], text.rms_norm_eps)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Features f of row p.

        Args:
            hidden: `[..., H]`, the target's last hidden state at token p.
            embedded: `[..., H]`, embedding of token p + 1.

        Returns:
            `[..., 2H] float32`.
        """
        e = _rms(embedded, self.embedding_weight, self.eps)
        h = _rms(hidden, self.hidden_weight, self.eps)
        halves = [h, e] if self.family.order == "hidden_first" else [e, h]
        return torch.cat(halves, -1)


class MiMoHead(nn.Module):
    """MiMo's MTP layer (`mimo_mtp.py`): its names are those under `model.mtp_layers.0`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        H, eps = config.hidden_size, config.rms_norm_eps
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or H // heads
        self.token_layernorm = RMSNorm(H, eps)
        self.hidden_layernorm = RMSNorm(H, eps)
        self.input_proj = nn.Linear(2 * H, H, bias=False)
        self.input_layernorm = RMSNorm(H, eps)
        self.self_attn = Attention(H, H, heads, config.num_key_value_heads, head_dim, bias=True)
        self.post_attention_layernorm = RMSNorm(H, eps)
        self.mlp = GatedMLP(H, config.intermediate_size)
        self.final_layernorm = RMSNorm(H, eps)
        self.rope = Rope(head_dim, config.rope_parameters, config.max_position_embeddings)
        self._embedding: Tensor | None = None
        self._output: Tensor | None = None

    @classmethod
    def load(cls, target: str | Path, config: Any) -> MiMoHead:
        """From the target's checkpoint, in fp32, with its embedding and output layer."""
        head = cls(config)
        prefix = FAMILIES["mimo"].prefix
        names = list(head.state_dict())
        tensors = _read(target, [f"{prefix}.{n}" for n in names])
        head.load_state_dict({n: t.float() for n, t in zip(names, tensors, strict=True)})
        shared = ["model.embed_tokens.weight"]
        if not config.tie_word_embeddings:
            shared.append("lm_head.weight")
        read = [t.float() for t in _read(target, shared)]
        object.__setattr__(head, "_embedding", read[0])
        object.__setattr__(head, "_output", read[-1])
        return head.eval()

    def features(self, hidden: Tensor, ids: Tensor, positions: Tensor) -> Tensor:
        """`[n, 2H]`, what `input_proj` and the signal head read; the embedding at position 0 is
        masked, as vLLM does."""
        assert self._embedding is not None
        embedded = nn.functional.embedding(ids, self._embedding)
        embedded = torch.where(positions[:, None] == 0, 0.0, embedded)
        return torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(embedded)], -1)

    @torch.no_grad()
    def extend(self, cache: DraftCache, hidden: Tensor, next_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Run n new rows.

        Args:
            hidden: `[n, H]`, the target's last hidden states before its final norm, or the
                layer's own output in further draft steps.
            next_ids: `[n] int64`, the token after each row's.

        Returns:
            `logits [n, V]` and the layer's output `[n, H]`.
        """
        assert self._output is not None
        begin = len(cache)
        positions = torch.arange(begin, begin + len(next_ids), device=hidden.device)
        x = self.input_proj(self.features(hidden, next_ids, positions))[None]
        q, k, v = self.self_attn.project(self.input_layernorm(x), self.rope(positions[None]))
        x = x + self.self_attn.merge(attend(q, *cache.append(k, v)))
        x = x + self.mlp(self.post_attention_layernorm(x))
        out = self.final_layernorm(x)[0]
        return out @ self._output.T, out

    @torch.no_grad()
    def propose(self, cache: DraftCache, hidden: Tensor, next_ids: Tensor, k: int) -> Proposal:
        """Take the newly accepted rows in, then draft `k` tokens; see `Eagle3Head.propose`."""
        logits, out = self.extend(cache, hidden, next_ids)
        kept = len(cache)
        rows, ids = [logits[-1:]], [logits[-1:].argmax(-1)]
        out = out[-1:]
        for _ in range(1, k):
            row, out = self.extend(cache, out, ids[-1])
            rows.append(row)
            ids.append(row.argmax(-1))
        cache.truncate(kept)
        return Proposal(torch.cat(ids), torch.cat(rows))


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = x.float()
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * weight


def _read(target: str | Path, names: list[str]) -> list[Tensor]:
    """Tensors of a local, possibly sharded, checkpoint."""
    folder = Path(target)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"target: {target} is no local folder with *.safetensors files")
    index = folder / "model.safetensors.index.json"
    place: dict[str, Path] = {}
    if index.is_file():
        table = read_json(index)["weight_map"]
        place = {n: folder / table[n] for n in names if n in table}
    else:
        for file in files:
            with safe_open(str(file), framework="pt") as f:
                place |= {n: file for n in f.keys() if n in names}  # noqa: SIM118
    missing = [n for n in names if n not in place]
    if missing:
        raise CheckpointError(
            f"target: {target} has no {missing[0]}; its checkpoint carries no MTP layer"
        )
    tensors = []
    for name in names:
        with safe_open(str(place[name]), framework="pt") as f:
            tensors.append(f.get_tensor(name))
    return tensors
