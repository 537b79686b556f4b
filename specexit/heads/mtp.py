"""The MTP draft head: a target's own kind of decoder layer behind one projection.

Row p pairs the target's last hidden state h_p with the embedding of token p + 1. Both are normed
and concatenated; `fc` reads that, `[2H -> H]`, and so does the signal head (DESIGN section 2). Then
one decoder layer, of the class that `transformers` has for the target (dense or mixture of
experts, any attention), at rotary position p, predicts token p + 2. Embedding and output layer are
the target's, bound with `bind`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specexit.errors import CheckpointError
from specexit.files import read_json, write_json
from specexit.heads.mtp_family import MtpFamily, family_of
from specexit.heads.mtp_files import SHARED, read_layer, read_shared, write_head
from specexit.target_config import read_target_config


@dataclass(frozen=True)
class MtpConfig:
    """Shape of an MTP head, which is its target's.

    Attributes:
        target: `transformers` config of the target's text model.
        family: names and order of its MTP input.
        values: content of the target's `config.json`.
    """

    target: Any
    family: MtpFamily
    values: dict[str, Any]

    @classmethod
    def read(cls, folder: str | Path) -> MtpConfig:
        """From a target's folder, or that of a head.

        Raises:
            ConfigError: the family is not known.
        """
        config = read_target_config(folder)
        family = family_of(config)
        return cls(config.get_text_config(), family, read_json(Path(folder) / "config.json"))

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.target.hidden_size)

    @property
    def in_features(self) -> int:
        """2H, the width of the features f that `fc` and the signal head read."""
        return 2 * self.hidden_size

    @property
    def vocab_size(self) -> int:
        """Of the target, and so of the draft."""
        return int(self.target.vocab_size)

    @property
    def aux_layer_ids(self) -> tuple[int, ...]:
        """vLLM's id of the last layer's output before the final norm."""
        return (int(self.target.num_hidden_layers),)

    @property
    def prefix(self) -> str:
        """Of the layer's tensors in a checkpoint."""
        return self.family.prefix.format(layer=self.target.num_hidden_layers)

    def to_json(self, dtype: torch.dtype) -> dict[str, Any]:
        """`config.json` of a head: the target's, with one MTP layer and plain weights."""
        dropped = ("auto_map", "quantization_config", "torch_dtype")
        values = {n: copy.deepcopy(v) for n, v in self.values.items() if n not in dropped}
        values["dtype"] = str(dtype).removeprefix("torch.")
        if values["model_type"] == "mimo":  # engines go by the architecture; this needs no code
            values["model_type"] = "qwen2"
        values.get("text_config", values)[self.family.layers_entry] = 1
        return values


class MtpHead(nn.Module):
    """MTP draft of one layer.

    Attributes:
        lag: rows between a token and the row that holds its features: those of token t are
            `[norm(embed(x_t)); norm(h_{t-1})]`, of row t - 1.
        has_input_norms: trainable norms stand before `fc` and the signal head.
    """

    lag = 1
    has_input_norms = True

    def __init__(self, config: MtpConfig) -> None:
        super().__init__()
        self.config = config
        H = config.hidden_size
        example = _one_layer(config.target)
        norm: type[nn.Module] = type(example.norm)
        eps = config.target.rms_norm_eps
        self.embedding_norm = norm(H, eps=eps)
        self.hidden_norm = norm(H, eps=eps)
        self.fc = nn.Linear(2 * H, H, bias=False)
        self.block = type(example.layers[0])(example.config, 0)
        self.final_norm = norm(H, eps=eps)
        self.rope = type(example.rotary_emb)(example.config)
        self._embedding: Tensor | None = None
        self._output: Tensor | None = None

    def bind(self, embedding: Tensor, output: Tensor) -> MtpHead:
        """Use the target's embedding and output rows, both `[V, H]`; neither is trained."""
        expected = (self.config.vocab_size, self.config.hidden_size)
        for name, weight in (("embedding", embedding), ("output layer", output)):
            if tuple(weight.shape) != expected:
                raise CheckpointError(
                    f"head: the target's {name} is {tuple(weight.shape)}, expected {expected}"
                )
        object.__setattr__(self, "_embedding", embedding.detach())  # never parameters of the head
        object.__setattr__(self, "_output", output.detach())
        return self

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft ids are target ids."""
        return draft_ids

    # -- the computation ------------------------------------------------------------------------

    def select(self, features: Tensor, final: Tensor) -> Tensor:
        """The target's states that the head reads.

        Args:
            features: `[..., H]`, the last layer's output before the final norm.
            final: `[..., H]`, after it.
        """
        return final if self.config.family.hidden == "after" else features

    def inputs(self, hidden: Tensor, next_ids: Tensor, positions: Tensor) -> Tensor:
        """Features f of rows p, what `fc` and the signal head read.

        Args:
            hidden: `[..., H]` at token p, or the head's own output in further draft steps.
            next_ids: `[...] int64`, token p + 1.
            positions: `[...] int64`, p.

        Returns:
            `[..., 2H]`.
        """
        assert self._embedding is not None, "bind was not called"
        embedded = F.embedding(next_ids, self._embedding).to(self.fc.weight.dtype)
        if self.config.family.masks_first:
            embedded = embedded.masked_fill((positions == 0)[..., None], 0.0)
        halves = [self.embedding_norm(embedded), self.hidden_norm(hidden.to(embedded.dtype))]
        if self.config.family.order == "hidden_first":
            halves.reverse()
        return torch.cat(halves, -1)

    def run(self, x: Tensor, positions: Tensor, allowed: Tensor, cache: Any) -> Tensor:
        """The decoder layer over new rows, whose keys and values go to the cache.

        Args:
            x: `[B, T, H]`, `fc(inputs)`.
            positions: `[B, T] int64`.
            allowed: `[B, 1, T, M] bool`, which of the cached and new rows each row sees.
            cache: a `transformers` cache.

        Returns:
            `[B, T, H]` for `logits`, and for the next draft step.
        """
        out = self.block(
            x,
            position_embeddings=self.rope(x, positions),
            attention_mask=allowed,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
        return self.final_norm(out) if self.config.family.feeds_normed else out

    def logits(self, out: Tensor) -> Tensor:
        """`[..., H]` -> `[..., V]`."""
        assert self._output is not None, "bind was not called"
        if not self.config.family.feeds_normed:
            out = self.final_norm(out)
        return F.linear(out, self._output.to(out.dtype))

    @torch.no_grad()
    def extend(self, cache: Any, hidden: Tensor, next_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Run n new rows of one request and keep them in the cache.

        Args:
            cache: a `transformers` cache; crop it to forget drafted rows.
            hidden: `[n, H]`, the target's states, or a draft step's own output.
            next_ids: `[n] int64`, the token after each row's.

        Returns:
            `logits [n, V]` and the next hidden states `[n, H]`.
        """
        n, begin = len(next_ids), cache.get_seq_length()
        positions = torch.arange(begin, begin + n, device=hidden.device)
        allowed = torch.ones(n, begin + n, dtype=torch.bool, device=hidden.device).tril(begin)
        x = self.fc(self.inputs(hidden, next_ids, positions))
        out = self.run(x[None], positions[None], allowed[None, None], cache)[0]
        return self.logits(out), out

    # -- files ----------------------------------------------------------------------------------

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write what engines load as a draft of method `mtp`: the layer under the target's names,
        the target's embedding and output layer, and its `config.json`, each file atomically.

        Args:
            dtype: of the stored parameters; by default the target's.
        """
        assert self._embedding is not None, "bind was not called"
        assert self._output is not None
        kind = dtype or self.config.target.dtype or torch.float32
        state = dict(self.state_dict())
        shared = dict(zip(SHARED, (self._embedding, self._output), strict=True))
        write_head(Path(folder), state, shared, self.config.prefix, self.config.family, kind)
        write_json(Path(folder) / "config.json", self.config.to_json(kind))

    @classmethod
    def load(cls, folder: str | Path, *, dtype: torch.dtype | None = torch.float32) -> MtpHead:
        """Read the MTP layer of a target, or of a head that `save` wrote.

        Args:
            dtype: of the parameters in memory; None keeps the file's.

        Raises:
            CheckpointError: the checkpoint has no MTP layer, or it is quantised or incomplete.
            ConfigError: the family is not known.
        """
        head = cls(MtpConfig.read(folder))
        expected = {n: tuple(t.shape) for n, t in head.state_dict().items()}
        tensors = read_layer(Path(folder), expected, head.config.prefix, head.config.family)
        head.load_state_dict(tensors)
        shared = read_shared(Path(folder))
        if shared is not None:
            head.bind(*shared)
        return head.to(dtype or tensors["fc.weight"].dtype)


def _one_layer(text: Any) -> Any:
    """The target's text model, cut to one layer like its MTP layer, without memory."""
    from transformers import AutoModel

    config = copy.deepcopy(text)
    depth, config.num_hidden_layers = config.num_hidden_layers, 1
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = ["full_attention"]
    if hasattr(config, "mlp_only_layers"):
        config.mlp_only_layers = []
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = int(depth < config.first_k_dense_replace)
    with torch.device("meta"):
        return AutoModel.from_config(config, attn_implementation="sdpa")
