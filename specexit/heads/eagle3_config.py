"""`config.json` of an EAGLE3 draft, in the keys that vLLM and SGLang read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specexit.errors import CheckpointError, ConfigError

LayerStyle = Literal["llama", "qwen3"]
_ARCHITECTURES: dict[LayerStyle, str] = {
    "llama": "LlamaForCausalLMEagle3",
    "qwen3": "Eagle3Qwen3ForCausalLM",
}


@dataclass(frozen=True)
class Eagle3Config:
    """Shape and options of an EAGLE3 draft of one layer.

    Attributes:
        hidden_size: H of the draft.
        target_hidden_size: width of one auxiliary hidden state.
        draft_vocab_size: rows of the draft's `lm_head`; equal to `vocab_size` for no mapping.
        aux_layer_ids: vLLM's auxiliary layer ids, ascending: id i is the input of decoder layer i,
            id L the last layer's output before the final norm.
        style: `llama` (what every engine loads) or `qwen3` (norms over each head of q and k).
        norm_before_residual: the residual is the normed hidden state, not the raw one.
        norm_before_fc: one RMSNorm over the concatenated auxiliary states before `fc`.
        fc_norm: one RMSNorm for each auxiliary state before `fc`.
        norm_output: further draft steps are fed the state after the final norm.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    aux_layer_ids: tuple[int, ...]
    target_hidden_size: int
    rms_norm_eps: float = 1e-6
    rope_parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}
    )
    max_position_embeddings: int = 2048
    style: LayerStyle = "llama"
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    attention_bias: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.style not in _ARCHITECTURES:
            raise ConfigError(f"draft.style: {self.style!r} is not one of llama, qwen3")
        ids = self.aux_layer_ids
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < 0:
            # vLLM sorts and removes repeats, so anything else would silently mean other features
            raise ConfigError(
                f"draft.aux_layer_ids: {list(ids)} must be distinct, ascending and >= 0"
            )
        if not 0 < self.draft_vocab_size <= self.vocab_size:
            raise ConfigError(
                f"draft.draft_vocab_size: {self.draft_vocab_size} is not in 1..{self.vocab_size}"
            )

    @property
    def in_features(self) -> int:
        """Width of the features f that `fc` and the signal head read."""
        return self.target_hidden_size * len(self.aux_layer_ids)

    @property
    def maps_vocabulary(self) -> bool:
        """Whether the draft's vocabulary is smaller than the target's."""
        return self.draft_vocab_size != self.vocab_size

    @classmethod
    def for_target(
        cls,
        target_config: Any,
        *,
        aux_layer_ids: Sequence[int] | None = None,
        draft_vocab_size: int | None = None,
        dtype: str = "bfloat16",
        **options: Any,
    ) -> Eagle3Config:
        """The draft of a target, one layer of its own width.

        Args:
            target_config: the target's `transformers` config.
            aux_layer_ids: by default three spread over the depth (`default_aux_layer_ids`).
            options: further fields of this class.
        """
        text = target_config.get_text_config()
        layers = text.num_hidden_layers
        ids = tuple(aux_layer_ids or default_aux_layer_ids(layers))
        if ids[-1] > layers:
            raise ConfigError(
                f"draft.aux_layer_ids: {ids[-1]} is beyond the target's last layer, {layers}"
            )
        heads = text.num_attention_heads
        config = cls(
            hidden_size=text.hidden_size,
            intermediate_size=text.intermediate_size,
            num_attention_heads=heads,
            num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            vocab_size=text.vocab_size,
            draft_vocab_size=draft_vocab_size or text.vocab_size,
            aux_layer_ids=ids,
            target_hidden_size=text.hidden_size,
            rms_norm_eps=text.rms_norm_eps,
            rope_parameters=dict(text.rope_parameters),
            max_position_embeddings=text.max_position_embeddings,
            bos_token_id=text.bos_token_id,
            eos_token_id=text.eos_token_id,
            dtype=dtype,
        )
        return replace(config, **options)

    def to_json(self) -> dict[str, Any]:
        """The content of `config.json`. Options are written even where they are the default:
        readers disagree about the default of a missing `norm_before_residual`."""
        return {
            "architectures": [_ARCHITECTURES[self.style]],
            "model_type": self.style,
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.target_hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": 1,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "eagle_aux_hidden_state_layer_ids": list(self.aux_layer_ids),
            "num_aux_hidden_states": len(self.aux_layer_ids),
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": dict(self.rope_parameters),
            "rope_theta": self.rope_parameters.get("rope_theta", 10000.0),
            "max_position_embeddings": self.max_position_embeddings,
            "norm_before_residual": self.norm_before_residual,
            "norm_before_fc": self.norm_before_fc,
            "fc_norm": self.fc_norm,
            "norm_output": self.norm_output,
            "attention_bias": self.attention_bias,
            "hidden_act": "silu",
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "dtype": self.dtype,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Eagle3Config:
        """Read `config.json` of an own or of a published EAGLE3 head.

        Raises:
            CheckpointError: it is not an EAGLE3 head of one layer, or lacks an entry.
        """
        names = values.get("architectures") or []
        style: LayerStyle
        if any(name in ("Eagle3Qwen3ForCausalLM",) for name in names):
            style = "qwen3"
        elif any(name in ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM") for name in names):
            style = "llama"
        else:
            raise CheckpointError(
                f"config.json: architectures {names} is no EAGLE3 head that is known here "
                f"({', '.join(_ARCHITECTURES.values())})"
            )
        if values.get("num_hidden_layers", 1) != 1:
            raise CheckpointError(
                f"config.json: num_hidden_layers is {values['num_hidden_layers']}; "
                "only EAGLE3 heads of one layer are supported"
            )
        older = values.get("eagle_config") or {}
        ids = values.get("eagle_aux_hidden_state_layer_ids") or older.get(
            "eagle_aux_hidden_state_layer_ids"
        )
        if not ids:
            raise CheckpointError(
                "config.json: eagle_aux_hidden_state_layer_ids is missing; engines then guess "
                "2, L // 2, L - 3 from the target. Write the ids that the head was trained with"
            )
        try:
            heads, hidden = values["num_attention_heads"], values["hidden_size"]
            rope = values.get("rope_parameters") or _legacy_rope(values)
            return cls(
                hidden_size=hidden,
                intermediate_size=values["intermediate_size"],
                num_attention_heads=heads,
                num_key_value_heads=values.get("num_key_value_heads") or heads,
                head_dim=values.get("head_dim") or hidden // heads,
                vocab_size=values["vocab_size"],
                draft_vocab_size=values.get("draft_vocab_size") or values["vocab_size"],
                aux_layer_ids=tuple(ids),
                target_hidden_size=values.get("target_hidden_size") or hidden,
                rms_norm_eps=values["rms_norm_eps"],
                rope_parameters=rope,
                max_position_embeddings=values["max_position_embeddings"],
                style=style,
                norm_before_residual=bool(values.get("norm_before_residual", False)),
                norm_before_fc=bool(
                    older.get("norm_before_fc", values.get("norm_before_fc", False))
                ),
                fc_norm=bool(values.get("fc_norm", False)),
                norm_output=bool(values.get("norm_output", False)),
                attention_bias=bool(values.get("attention_bias", False)),
                bos_token_id=values.get("bos_token_id"),
                eos_token_id=values.get("eos_token_id"),
                dtype=values.get("dtype") or values.get("torch_dtype") or "bfloat16",
            )
        except KeyError as missing:
            raise CheckpointError(f"config.json: {missing.args[0]} is missing") from None


def default_aux_layer_ids(layers: int) -> tuple[int, ...]:
    """Three ids spread over L layers: 2, L // 2, L - 3 where these differ, as engines default to;
    otherwise early, middle and the last layer's input."""
    usual = (2, layers // 2, layers - 3)
    if usual[0] < usual[1] < usual[2]:
        return usual
    spread = sorted({max(1, layers // 4), max(1, layers // 2), max(1, layers - 1)})
    return tuple(spread)


def _legacy_rope(values: Mapping[str, Any]) -> dict[str, Any]:
    scaling = dict(values.get("rope_scaling") or {})
    kind = scaling.pop("type", None) or scaling.pop("rope_type", None) or "default"
    return {"rope_type": kind, "rope_theta": values.get("rope_theta", 10000.0), **scaling}
