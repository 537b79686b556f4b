"""Join the parts of a dataset: shards of one folder, or folders of jobs that share no disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from data_build.build import batches
from data_build.finish import finish
from data_build.folder import RunFolder
from data_build.questions import Reader
from data_build.verification import settings_of
from specexit.errors import ConfigError
from specexit.files import atomic_path


def merge(folders: list[str], out: str) -> dict[str, Any]:
    """Collect finished batches into `out` and describe the whole.

    Args:
        folders: parts made by `build --shard i/n` from the same settings; may be `out` alone.

    Returns:
        The contents of stats.json.

    Raises:
        ConfigError: settings differ, a batch is missing, or two parts hold different files for it.
    """
    settings = settings_of(folders[0])
    with RunFolder(out) as folder:
        folder.begin(settings)
        for name in folders:
            if Path(name).resolve() == Path(out).resolve():
                continue
            with RunFolder(name) as part:
                part.begin(settings)
                _take(part, folder)
        expected = sum(1 for _ in batches(iter(Reader(settings)), settings.batch_size))
        missing = sorted(set(range(expected)) - set(folder.finished()))
        if missing:
            raise ConfigError(
                f"merge: {len(missing)} of {expected} batches are missing "
                f"({', '.join(map(str, missing[:8]))}{', ...' if len(missing) > 8 else ''}); "
                "run the jobs that were to make them again, then merge"
            )
        return finish(folder, settings)


def _take(part: RunFolder, folder: RunFolder) -> None:
    for kind, pattern in (("state", "*.json"), ("data", "*.parquet")):  # summaries first
        for source in sorted((part.path / kind).glob(pattern)):
            target = folder.path / kind / source.name
            if not target.exists():
                with atomic_path(target) as temporary:
                    shutil.copyfile(source, temporary)
            elif kind == "data" and target.read_bytes() != source.read_bytes():
                raise ConfigError(
                    f"merge: {source} and {target} differ; they come from different runs"
                )
