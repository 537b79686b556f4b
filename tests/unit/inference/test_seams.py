"""A vLLM without a name that SpecExit needs is refused at start, by name."""

from __future__ import annotations

import pytest

from inference.vllm import seams
from inference.vllm.seams import Seam, SeamError


def test_installed_vllm_has_every_seam() -> None:
    seams.check(seams.WORKER_V1 + seams.SCHEDULER + seams.FRONT_END)


@pytest.mark.parametrize(
    ("seam", "named"),
    [
        (Seam("inference.vllm.nowhere", "x"), "module inference.vllm.nowhere"),
        (Seam("inference.vllm.seams", "Seam.gone"), "inference.vllm.seams.Seam.gone"),
        (Seam("inference.vllm.seams", "check", ("other",)), r"seams.check\(other\)"),
        (Seam("inference.vllm.seams", "Seam.__annotations__.gone"), "__annotations__.gone"),
    ],
)
def test_missing_seam_is_named_with_version_and_remedy(seam: Seam, named: str) -> None:
    with pytest.raises(SeamError, match=rf"vllm \S+ lacks .*{named}.*install that version"):
        seams.check((seam,))


def test_missing_attribute_is_named() -> None:
    with pytest.raises(SeamError, match="object has no input_batch"):
        seams.check_attributes(object(), ("input_batch",))
