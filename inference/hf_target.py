"""A transformers target that also yields the auxiliary hidden states a draft head reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specexit.errors import CheckpointError


class Target:
    """One request's forward passes, with its KV cache.

    Args:
        model: a `transformers` causal LM, in eval mode.
        aux_layer_ids: vLLM's ids: i is the input of decoder layer i, L the last layer's output
            before the final norm.
    """

    def __init__(self, model: Any, aux_layer_ids: Sequence[int]) -> None:
        from transformers import DynamicCache

        self.model = model
        self.layers = model.get_decoder().layers
        if aux_layer_ids and max(aux_layer_ids) > len(self.layers):
            raise CheckpointError(
                f"head: aux layer {max(aux_layer_ids)} is beyond the target's {len(self.layers)} "
                "layers; it was trained for another target"
            )
        self.aux_layer_ids = tuple(aux_layer_ids)
        self._cache = DynamicCache(config=model.config)

    @property
    def embedding(self) -> Tensor:
        """`[V, H]`, the token embedding."""
        return self.model.get_input_embeddings().weight

    def __len__(self) -> int:
        """Number of tokens in the KV cache."""
        return self._cache.get_seq_length()

    @torch.inference_mode()
    def forward(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append `ids` to the cached text.

        Returns:
            `logits [n, V] float32` and `features [n, aux * H]` of the n tokens.
        """
        seen: dict[int, Tensor] = {}
        hooks = [self._watch(i, seen) for i in set(self.aux_layer_ids)]
        try:
            out = self.model(
                torch.tensor([list(ids)], device=self.model.device),
                past_key_values=self._cache,
                use_cache=True,
            )
        finally:
            for hook in hooks:
                hook.remove()
        picked = [seen[i][0] for i in self.aux_layer_ids]
        features = torch.cat(picked, -1) if picked else out.logits.new_zeros(len(ids), 0)
        return out.logits[0].float(), features

    def truncate(self, length: int) -> None:
        """Forget the cached tokens from `length` on, as after a rejection."""
        surplus = len(self) - length
        if surplus > 0:
            self._cache.crop(-surplus)

    def _watch(self, i: int, seen: dict[int, Tensor]) -> Any:
        """Keep the input of layer i (the output of the last layer for i = L)."""
        if i < len(self.layers):

            def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                seen[i] = args[0] if args else kwargs["hidden_states"]

            return self.layers[i].register_forward_pre_hook(before, with_kwargs=True)

        def after(_: Any, __: Any, output: Any) -> None:
            seen[i] = output[0] if isinstance(output, tuple) else output

        return self.layers[-1].register_forward_hook(after)
