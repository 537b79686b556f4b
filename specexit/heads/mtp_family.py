"""MTP families: where a checkpoint keeps its MTP layer, and how that layer's input is made.

Names and order are those of vLLM's `mimo_mtp.py`, `deepseek_mtp.py`, `glm4_moe_mtp.py`,
`qwen3_next_mtp.py` and `qwen3_5_mtp.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specexit.errors import ConfigError


@dataclass(frozen=True)
class MtpFamily:
    """How a family's MTP layer is named and fed.

    Attributes:
        prefix: of the layer's weights; `{layer}` is the number of decoder layers.
        names: own name of a part -> its name under the prefix. The decoder layer is `block`.
        order: which half comes first in the projection's input.
        hidden: whether h is the last layer's output `before` or `after` the target's final norm.
        feeds_normed: further draft steps read the layer's output after its final norm.
        masks_first: the embedding at position 0 is replaced by zeros.
        layers_entry: entry of `config.json` that counts MTP layers.
    """

    prefix: str
    names: Mapping[str, str]
    order: Literal["hidden_first", "embedding_first"] = "embedding_first"
    hidden: Literal["before", "after"] = "after"
    feeds_normed: bool = True
    masks_first: bool = True
    layers_entry: str = "num_nextn_predict_layers"


_MIMO = MtpFamily(
    "model.mtp_layers.0.",
    {
        "embedding_norm": "token_layernorm",
        "hidden_norm": "hidden_layernorm",
        "fc": "input_proj",
        "final_norm": "final_layernorm",
        "block": "",
    },
    order="hidden_first",
    hidden="before",
)
_EH_PROJ = MtpFamily(
    "model.layers.{layer}.",
    {
        "embedding_norm": "enorm",
        "hidden_norm": "hnorm",
        "fc": "eh_proj",
        "final_norm": "shared_head.norm",
        "block": "",
    },
    feeds_normed=False,
)
_FC_NAMES = {
    "embedding_norm": "pre_fc_norm_embedding",
    "hidden_norm": "pre_fc_norm_hidden",
    "fc": "fc",
    "final_norm": "norm",
    "block": "layers.0",
}
_QWEN3_NEXT = MtpFamily("mtp.", _FC_NAMES, masks_first=False)
_QWEN3_5 = MtpFamily("mtp.", _FC_NAMES, masks_first=False, layers_entry="mtp_num_hidden_layers")
FAMILIES: Mapping[str, MtpFamily] = {
    "mimo": _MIMO,
    "deepseek_v3": _EH_PROJ,
    "glm4_moe": _EH_PROJ,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": _QWEN3_5,
}


def family_of(config: Any) -> MtpFamily:
    """The family of a target, from its `transformers` config.

    Raises:
        ConfigError: its MTP is not known here.
    """
    kind = config.get_text_config().model_type
    if "MiMoForCausalLM" in (config.architectures or []):  # its model_type may be qwen2
        kind = "mimo"
    if kind not in FAMILIES:
        raise ConfigError(
            f"draft.method: mtp is not known for model_type {kind!r} "
            f"(known: {', '.join(sorted(FAMILIES))}); use method eagle3"
        )
    return FAMILIES[kind]
