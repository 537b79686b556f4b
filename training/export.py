"""Write trained heads in the checkpoint layout that engines load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specexit.checkpoint import HeadMetadata, save_signal_head
from specexit.heads.eagle3 import Eagle3Head
from specexit.provenance import write_provenance
from training.setup import Run
from training.signals import StandardisedSignals


def export_head(
    folder: Path,
    run: Run,
    signals: StandardisedSignals | None,
    *,
    command: str,
    metrics: dict[str, Any] | None = None,
) -> None:
    """Write the draft, its signal head on raw features, metadata and provenance to `folder`.

    Raises:
        OSError: the disk is full; an older head in `folder` stays whole file by file.
    """
    run.draft.save(folder)
    if signals is not None:
        head = signals.fold()
        aux = run.draft.config.aux_layer_ids if isinstance(run.draft, Eagle3Head) else ()
        metadata = HeadMetadata(
            method=run.config.draft.method,
            kind=head.kind,
            signal_source=run.config.signals.source,
            rows=head.rows,
            readout_size=signals.readout_size,
            in_features=head.projection.in_features,
            aux_layer_ids=aux,
            think_start_ids=run.think.start_ids,
            think_end_ids=run.think.end_ids,
            target=run.facts,
            data_hash=run.data_hash,
            metrics=metrics or {},
        )
        save_signal_head(folder, head, metadata)
    write_provenance(
        folder / "specexit",
        command=command,
        seed=run.config.seed,
        config=run.config.model_dump(mode="json"),
        data_hash=run.data_hash,
        metrics=metrics or {},
        draft_vocabulary_coverage=run.coverage,
    )
