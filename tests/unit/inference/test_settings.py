"""The server's settings: policy keys and worker keys in one mapping."""

from __future__ import annotations

from typing import Any

import pytest

from inference.vllm.settings import server_policy, split_settings
from specexit.errors import ConfigError
from specexit.policy import ExitPolicy, Thresholds


def test_server_overrides_the_heads_policy_key_by_key() -> None:
    head = ExitPolicy(thresholds=Thresholds(confidence=0.9), patience=3)
    config = {"specexit": {"record": True, "thresholds": {"remain": 50}}}
    policy = server_policy(config, head)
    assert policy.thresholds == Thresholds(confidence=0.9, remain=50)
    assert policy.patience == 3
    assert split_settings(config)[0].record


@pytest.mark.parametrize("config", [{}, None, {"other": 1}])
def test_no_settings_leave_the_heads_policy(config: Any) -> None:
    assert server_policy(config, ExitPolicy(patience=2)) == ExitPolicy(patience=2)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"treshold": 1},
            r"additional_config\.specexit\.treshold: unknown key; known keys: .*record",
        ),
        ({"patience": 0}, r"additional_config\.specexit\.patience: 0 is not valid"),
        ({"record": "often"}, r"additional_config\.specexit\.record: 'often'"),
        ({"think_end": "</t>"}, r"give both think_start and think_end"),
        (["x"], r"additional_config\.specexit: \['x'\] is not a mapping"),
        ({"smoothing": {"kind": "momentum"}}, r"'momentum' runs in replay only"),
    ],
)
def test_wrong_setting_is_named(values: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        server_policy({"specexit": values}, ExitPolicy())
