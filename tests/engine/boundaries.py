"""Where the paragraphs of an output of the random target end, in plain Python."""

from __future__ import annotations

from specexit.split import StepSplitter
from tests.engine.chaos import VOCABULARY


def boundaries(prompt: list[int], output: list[int]) -> list[int]:
    """Indices into `output` of the tokens that end a paragraph."""
    splitter = StepSplitter.from_texts(VOCABULARY)
    ends = splitter.boundaries(output, previous=prompt[-1])[1:]
    return [end - 1 for end in ends]
