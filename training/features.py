"""The frozen target: its auxiliary hidden states and its next-token distributions.

Auxiliary id i is the input of decoder layer i, id L the output of the last layer before the final
norm: vLLM's numbering, equal to transformers' `hidden_states[i]` for i < L.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from specexit.errors import ConfigError
from specexit.target_config import read_target_config
from training.batch import Batch
from training.unroll import same_sequence, step_mask


class Targets(NamedTuple):
    """What the draft should say at N places.

    Attributes:
        probabilities: `[N, V_draft] float32`.
        best: `[N] int64`, the most likely draft id.
    """

    probabilities: Tensor
    best: Tensor


class TargetStates:
    """A batch's features and distributions. All distributions are computed once, at first use.

    Attributes:
        features: `[R, T, n * H]`, auxiliary hidden states.
        final: `[R, T, H]`, what the target's `lm_head` reads (after the final norm).
        output: `[V_draft, H]`, rows of the `lm_head` of the draft's vocabulary.
        to_draft: `[V] int64`, draft id of each target id (0 where it has none).
    """

    def __init__(
        self, features: Tensor, final: Tensor, output: Tensor, to_draft: Tensor, batch: Batch
    ) -> None:
        self.features, self.final = features, final
        self._output, self._to_draft = output, to_draft
        self._batch = batch
        self._computed: tuple[Tensor, Targets] | None = None

    def draft_ids(self, ids: Tensor) -> Tensor:
        """Target ids -> draft ids."""
        return self._to_draft[ids]

    def at(self, places: Tensor) -> Targets:
        """Distributions at flat places `[N]` of `[R * T]`."""
        if self._computed is None:
            self._computed = self._compute()
        lookup, targets = self._computed
        rows = lookup[places]
        return Targets(targets.probabilities[rows], targets.best[rows])

    @torch.no_grad()
    def _compute(self) -> tuple[Tensor, Targets]:
        b = self._batch
        first = step_mask(b.is_target, b.document, 0).flatten().nonzero().flatten() + 1
        lookup = torch.zeros(b.ids.numel(), dtype=torch.int64, device=b.ids.device)
        lookup[first] = torch.arange(len(first), device=lookup.device)
        logits = (self.final.flatten(0, 1)[first] @ self._output.T).float()
        return lookup, Targets(logits.softmax(-1), logits.argmax(-1))


class FeatureSource(Protocol):
    """Where states come from."""

    embedding: Tensor

    def states(self, batch: Batch) -> TargetStates:
        """States of a batch, without gradient."""
        ...


class OnlineTarget:
    """A `transformers` causal language model, frozen, in this process.

    Args:
        target: folder or hub name.
        aux_layer_ids: vLLM's numbering.
        dtype: of the model; None for its config's.
    """

    def __init__(
        self,
        target: str,
        aux_layer_ids: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(
            target,
            config=read_target_config(target),
            dtype=dtype or "auto",
            attn_implementation="sdpa",
        )
        self.model = model.to(device).eval().requires_grad_(False)
        self.aux_layer_ids = tuple(aux_layer_ids)
        decoder = self.model.get_decoder()
        layers: nn.ModuleList = decoder.layers
        if self.aux_layer_ids[-1] > len(layers):
            raise ConfigError(
                f"draft.aux_layer_ids: {self.aux_layer_ids[-1]} is beyond the target's last "
                f"layer, {len(layers)}"
            )
        self._decoder = decoder
        self._captured: dict[int, Tensor] = {}
        for i in self.aux_layer_ids:
            if i < len(layers):
                layers[i].register_forward_pre_hook(self._keep_input(i), with_kwargs=True)
            else:
                layers[-1].register_forward_hook(self._keep_output(i))
        self.embedding: Tensor = self.model.get_input_embeddings().weight
        self._head: Tensor = self.model.get_output_embeddings().weight
        self.use_vocabulary(None)

    def use_vocabulary(self, target_ids: Tensor | None) -> None:
        """Restrict the distributions to `target_ids [V_draft]`; None for all."""
        V = self._head.shape[0]
        ids = torch.arange(V) if target_ids is None else target_ids
        ids = ids.to(self._head.device)
        self._output = self._head if target_ids is None else self._head[ids]
        self.output_rows = self._output
        self._to_draft = torch.zeros(V, dtype=torch.int64, device=ids.device)
        self._to_draft[ids] = torch.arange(len(ids), device=ids.device)

    @torch.no_grad()
    def states(self, batch: Batch) -> TargetStates:
        """Run the target over packed rows; sequences do not see each other."""
        out = self._decoder(
            input_ids=batch.ids,
            position_ids=batch.positions,
            attention_mask=same_sequence(batch.document),
            use_cache=False,
        )
        return self.wrap(self._take_captured(), out.last_hidden_state, batch)

    @torch.no_grad()
    def run_padded(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """One sequence a row, right-padded; causal attention never looks at the padding.

        Returns:
            `features [R, T, F]` and `final [R, T, H]`.
        """
        out = self._decoder(input_ids=ids, use_cache=False)
        return self._take_captured(), out.last_hidden_state

    def wrap(self, features: Tensor, final: Tensor, batch: Batch) -> TargetStates:
        """States from tensors that were computed before."""
        return TargetStates(features, final, self._output, self._to_draft, batch)

    def _take_captured(self) -> Tensor:
        features = torch.cat([self._captured[i] for i in self.aux_layer_ids], -1)
        self._captured.clear()
        return features

    def _keep_input(self, i: int) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._captured[i] = args[0] if args else kwargs["hidden_states"]

        return hook

    def _keep_output(self, i: int) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            self._captured[i] = output[0] if isinstance(output, tuple) else output

        return hook


def resolve_target(name: str) -> str:
    """`tiny` -> the built-in reasoner's folder; anything else unchanged.

    Raises:
        ConfigError: a path that does not exist.
    """
    if name == "tiny":
        from specexit import tiny

        return str(tiny.model_path())
    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise ConfigError(f"target: no folder {name}; give a model's folder or its hub name")
    return str(Path(name).expanduser()) if name.startswith("~") else name
