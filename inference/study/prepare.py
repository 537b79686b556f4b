"""Make what the study's shipped configurations read: the demo's data, heads and replay tables."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from specexit.errors import ConfigError

log = logging.getLogger(__name__)

DEMO = Path("runs/demo")


def ensure(folders: Iterable[str]) -> None:
    """Run the demo's stages (without its comparison) if folders under `runs/demo` are missing.

    Raises:
        ConfigError: a missing folder lies elsewhere.
    """
    missing = [Path(f) for f in folders if not Path(f).exists()]
    if not missing:
        return
    for folder in missing:
        if not folder.is_relative_to(DEMO):
            raise ConfigError(f"replay: no folder {folder}; `specexit replay record` makes one")
    from inference.study import demo
    from specexit.config import load
    from specexit.tiny import model_path

    log.info("%s is missing: running the demo's stages first", missing[0])
    settings = load(demo.DemoSettings, demo.ROOT / "configs" / "demo" / "demo.yaml")
    demo.prepare(demo.Places(DEMO, Path(settings.target or model_path())), settings)
