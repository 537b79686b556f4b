"""The EAGLE3 draft head in plain PyTorch, computing what vLLM's `llama_eagle3.py` computes.

Row p pairs the target's auxiliary hidden states at token p with the embedding of token p + 1, has
rotary position p and predicts token p + 2. Parameter names are those of the checkpoint, so the
state dict is the file. The token embedding is the target's, bound with `bind_embedding`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from specexit.errors import CheckpointError
from specexit.files import atomic_path, read_json, write_json
from specexit.heads.cache import DraftCache, attend
from specexit.heads.eagle3_config import Eagle3Config
from specexit.heads.layers import Attention, GatedMLP, RMSNorm, Rope

WEIGHTS = "model.safetensors"


class Proposal(NamedTuple):
    """K drafted tokens.

    Attributes:
        ids: `[K] int64`, target ids.
        logits: `[K, draft_vocab_size]` they were chosen from.
    """

    ids: Tensor
    logits: Tensor


class DraftLayer(nn.Module):
    """The draft's only decoder layer; its attention reads `[norm(embedding); norm(hidden)]`."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        H, eps = config.hidden_size, config.rms_norm_eps
        is_qwen3 = config.style == "qwen3"
        self.self_attn = Attention(
            2 * H,
            H,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            head_norm_eps=eps if is_qwen3 else None,
            bias=config.attention_bias,
            out_bias=config.attention_bias and not is_qwen3,  # as vLLM's two classes have it
        )
        self.mlp = GatedMLP(H, config.intermediate_size)
        self.hidden_norm = RMSNorm(H, eps)
        self.input_layernorm = RMSNorm(H, eps)
        self.post_attention_layernorm = RMSNorm(H, eps)


class Eagle3Head(nn.Module):
    """EAGLE3 draft of one layer.

    Attributes:
        lag: rows between a token and the row that holds its features: none.
    """

    lag = 0
    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        H, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(config.in_features, H, bias=False)
        self.midlayer = DraftLayer(config)
        self.norm = RMSNorm(H, eps)
        self.lm_head = nn.Linear(H, config.draft_vocab_size, bias=False)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(config.in_features, eps)
        if config.fc_norm:
            width = config.target_hidden_size
            self.fc_norm = nn.ModuleList(RMSNorm(width, eps) for _ in config.aux_layer_ids)
        if config.maps_vocabulary:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
            mapped = torch.zeros(config.vocab_size, dtype=torch.bool)
            mapped[: config.draft_vocab_size] = True
            self.register_buffer("t2d", mapped)
        self.rope = Rope(config.head_dim, config.rope_parameters, config.max_position_embeddings)
        self._embedding: Tensor | None = None

    # -- vocabulary -----------------------------------------------------------------------------

    def bind_embedding(self, weight: Tensor) -> Eagle3Head:
        """Use the target's embedding table `[V, H]`; it is neither trained nor saved."""
        expected = (self.config.vocab_size, self.config.hidden_size)
        if tuple(weight.shape) != expected:
            raise CheckpointError(
                f"head: the target's embedding is {tuple(weight.shape)}, expected {expected}"
            )
        object.__setattr__(self, "_embedding", weight.detach())  # never a parameter of the head
        return self

    def embed(self, ids: Tensor) -> Tensor:
        """`ids [...] int64` -> `[..., H]` of the target's embedding, in the head's dtype."""
        if self._embedding is None:
            raise RuntimeError("bind_embedding was not called")
        return nn.functional.embedding(ids, self._embedding).to(self.norm.weight.dtype)

    def set_vocabulary(self, target_ids: Tensor) -> None:
        """Map draft id i to `target_ids[i]` (ascending, `[draft_vocab_size] int64`)."""
        size = self.config.draft_vocab_size
        ids = target_ids.to(torch.int64).cpu()
        if ids.shape != (size,) or not bool((ids[1:] > ids[:-1]).all()):
            raise ValueError(f"target_ids: need {size} ascending ids, got {tuple(ids.shape)}")
        self.d2t.copy_(ids - torch.arange(size))
        self.t2d.zero_()
        self.t2d[ids.to(self.t2d.device)] = True

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft ids -> target ids: `i + d2t[i]`."""
        if not self.config.maps_vocabulary:
            return draft_ids
        return draft_ids + self.d2t[draft_ids]

    # -- the computation ------------------------------------------------------------------------

    @property
    def has_input_norms(self) -> bool:
        """Whether trainable norms stand before `fc` and the signal head."""
        return self.config.norm_before_fc or self.config.fc_norm

    def select(self, features: Tensor, final: Tensor) -> Tensor:
        """The target's states that the head reads: `features`, not those after its last norm."""
        return features

    def inputs(self, features: Tensor, next_ids: Tensor, positions: Tensor) -> Tensor:
        """What `fc` and the signal head read in each row, as `MtpHead.inputs`; the token after a
        row's and its position play no part."""
        return self.normalise(features)

    def normalise(self, features: Tensor) -> Tensor:
        """`[..., n * H]` auxiliary states -> what `fc` and the signal head read."""
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            chunks = features.chunk(len(self.fc_norm), -1)
            features = torch.cat([n(c) for n, c in zip(self.fc_norm, chunks, strict=True)], -1)
        return features

    def combine(self, features: Tensor) -> Tensor:
        """`[..., n * H]` auxiliary states -> `[..., H]`."""
        return self.fc(self.normalise(features))

    def project(
        self, embedded: Tensor, hidden: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """First half of the layer, up to attention.

        Args:
            embedded, hidden: `[B, T, H]`.
            positions: `[B, T] int64`, rotary positions.

        Returns:
            `q [B, heads, T, d]`, `k, v [B, kv_heads, T, d]`, `residual [B, T, H]`.
        """
        layer = self.midlayer
        normed = layer.hidden_norm(hidden)
        residual = normed if self.config.norm_before_residual else hidden
        inputs = torch.cat([layer.input_layernorm(embedded), normed], -1)
        q, k, v = layer.self_attn.project(inputs, self.rope(positions))
        return q, k, v, residual

    def finish(self, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Second half of the layer, from attention's result `[B, heads, T, d]`.

        Returns:
            `out [B, T, H]` for `logits`, and the hidden state `[B, T, H]` of the next draft step
            (before the final norm, unless `norm_output`).
        """
        layer = self.midlayer
        x = layer.self_attn.merge(attended) + residual
        x = layer.mlp(layer.post_attention_layernorm(x)) + x
        out = self.norm(x)
        return out, out if self.config.norm_output else x

    def logits(self, out: Tensor) -> Tensor:
        """`[..., H]` -> `[..., draft_vocab_size]`."""
        return self.lm_head(out)

    # -- drafting, one request ------------------------------------------------------------------

    def extend(
        self, cache: DraftCache, hidden: Tensor, next_ids: Tensor, first: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run n new rows and keep them in the cache.

        Args:
            hidden: `[n, H]`: `combine(features)` of accepted tokens, or a draft step's own state.
            next_ids: `[n] int64`, the token after each row's.
            first: rotary position of the first row; by default the cache's length.

        Returns:
            `logits [n, draft_vocab_size]` and the next hidden states `[n, H]`.
        """
        start = len(cache) if first is None else first
        positions = torch.arange(start, start + len(next_ids), device=hidden.device)[None]
        q, k, v, residual = self.project(self.embed(next_ids)[None], hidden[None], positions)
        out, following = self.finish(attend(q, *cache.append(k, v)), residual)
        return self.logits(out[0]), following[0]

    @torch.no_grad()
    def propose(self, cache: DraftCache, features: Tensor, next_ids: Tensor, k: int) -> Proposal:
        """Take the newly accepted rows in, then draft `k` tokens greedily.

        Rows are those of vLLM's drafter: after a verification step with a accepted drafts there
        are a + 1 of them; after the prompt of n tokens, n.

        Args:
            cache: holds the rows before; afterwards also the new ones, but no drafted row.
            features: `[n, aux * H]`, auxiliary states of the n new tokens of the text.
            next_ids: `[n] int64`, the token after each; the last is the newest sampled token.
            k: number of tokens to draft, >= 1.
        """
        logits, hidden = self.extend(cache, self.combine(features), next_ids)
        kept = len(cache)
        row, hidden = logits[-1:], hidden[-1:]
        rows, ids = [row], [self.to_target_ids(row.argmax(-1))]
        for _ in range(1, k):
            row, hidden = self.extend(cache, hidden, ids[-1])
            rows.append(row)
            ids.append(self.to_target_ids(row.argmax(-1)))
        cache.truncate(kept)
        return Proposal(torch.cat(ids), torch.cat(rows))

    # -- files ----------------------------------------------------------------------------------

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write `config.json` and `model.safetensors`, each atomically.

        Args:
            dtype: of the stored parameters; by default the config's.
        """
        kind = dtype or getattr(torch, self.config.dtype)
        tensors = {
            name: (t.detach().to(kind) if t.is_floating_point() else t.detach()).cpu().contiguous()
            for name, t in self.state_dict().items()
        }
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        with atomic_path(path / WEIGHTS) as temporary:
            save_file(tensors, str(temporary), metadata={"format": "pt"})
        values = self.config.to_json() | {"dtype": str(kind).removeprefix("torch.")}
        write_json(path / "config.json", values)

    @classmethod
    def load(cls, folder: str | Path, *, dtype: torch.dtype | None = torch.float32) -> Eagle3Head:
        """Read a head; every tensor must be there, and nothing else.

        Args:
            dtype: of the parameters in memory; None keeps the file's.

        Raises:
            CheckpointError: a file or tensor is missing, surplus or of another shape. A tensor
                that stayed random would serve with an acceptance length of 1.
        """
        path = Path(folder)
        for name in ("config.json", WEIGHTS):
            if not (path / name).is_file():
                raise CheckpointError(f"head: {path / name} is missing; export the head again")
        config = Eagle3Config.from_json(read_json(path / "config.json"))
        tensors = load_file(str(path / WEIGHTS))
        head = cls(config)
        own = tensors.pop("embed_tokens.weight", None)  # some published heads carry the target's
        tensors = {n.replace("layers.0.", "midlayer."): t for n, t in tensors.items()}
        expected = {n: tuple(t.shape) for n, t in head.state_dict().items()}
        if config.maps_vocabulary and "t2d" not in tensors and "d2t" in tensors:
            tensors["t2d"] = _t2d(tensors["d2t"], config.vocab_size)
        check_tensors(path / WEIGHTS, expected, {n: tuple(t.shape) for n, t in tensors.items()})
        head.load_state_dict(tensors)
        if own is not None:
            head.bind_embedding(own)
        if dtype is not None:
            head.to(dtype)
        else:
            head.to(tensors["fc.weight"].dtype)
        return head


def check_tensors(
    path: Path, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]
) -> None:
    """Raise `CheckpointError` with every tensor that is missing, surplus or of another shape."""
    wrong = [
        f"{name}: {found.get(name, 'missing')}, expected {expected.get(name, 'nothing')}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    if wrong:
        raise CheckpointError(f"head: {path} does not fit its config.json: " + "; ".join(wrong))


def _t2d(d2t: Tensor, vocab_size: int) -> Tensor:
    mapped = torch.zeros(vocab_size, dtype=torch.bool)
    mapped[torch.arange(len(d2t)) + d2t] = True
    return mapped
