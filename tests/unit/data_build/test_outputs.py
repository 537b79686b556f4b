"""Full outputs taken apart, with two kinds of tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from data_build.config import DataSettings, Reading
from data_build.engine import Completion
from data_build.job import TraceBuilder
from data_build.outputs import OutputReader
from data_build.prompts import output_ids, prompt_ids
from data_build.questions import Question
from specexit import contract
from specexit.config import parse
from specexit.split import StepSplitter, text_boundaries
from specexit.think import ThinkFormat

from .scripted import question, thinking

BOX = contract("boxed_integer")


@pytest.fixture(scope="module")
def single_newlines() -> Any:
    """A byte-level BPE that never joins two newlines, and whose think tags are plain text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\n|[^\n]+?(?=[\s<]|$)"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    texts = [question(i) + thinking(question(i)) for i in range(60)]
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False)
    assert not any("\n\n" in text for text in wrapped.batch_decode([[i] for i in range(420)]))
    return wrapped


@pytest.fixture(params=["built-in", "single newlines"])
def reader(request: pytest.FixtureRequest, tokenizer: Any, single_newlines: Any) -> OutputReader:
    if request.param == "built-in":
        return make_reader(tokenizer)
    return make_reader(single_newlines, "<think>", "</think>")


def make_reader(tokenizer: Any, start: str | None = None, end: str | None = None) -> OutputReader:
    think = ThinkFormat.from_tokenizer(tokenizer, start, end)
    return OutputReader(tokenizer, think, StepSplitter.from_tokenizer(tokenizer))


def read(reader: OutputReader, text: str, *, prompt: str = "Q\n", reason: str = "stop") -> Any:
    ids = reader.tokenizer.encode(text, add_special_tokens=False)
    before = reader.tokenizer.encode(prompt, add_special_tokens=False)
    return reader.read(before, Completion(ids, [], reason), BOX), ids


ANSWER = "\n\nThe answer is \\boxed{12}."


def test_paragraphs_of_ids_are_those_of_the_text(reader: OutputReader) -> None:
    said = "\n" + thinking(question(5)) + "\n"
    parsed, ids = read(reader, f"<think>{said}</think>{ANSWER}")
    assert parsed.reason is None
    assert parsed.answer.value == "12"
    thought = ids[parsed.start : parsed.end]
    cuts = [len(reader.tokenizer.decode(thought[:b])) for b in parsed.boundaries]
    assert cuts == text_boundaries(said)
    assert len(cuts) > 4


def test_a_trial_prefix_is_the_outputs_own_ids(reader: OutputReader) -> None:
    settings = parse(
        DataSettings, {"target": "x", "contract": "boxed_integer", "probe": {"strategy": "all"},
                       "questions": [{"source": "tiny", "n": 1}]}
    )  # fmt: skip
    said = thinking(question(3))
    ids = reader.tokenizer.encode(f"<think>\n{said}\n</think>{ANSWER}", add_special_tokens=False)
    asked = Question("q", "Q", [{"role": "user", "content": "Q"}], None, BOX, "train")
    job = TraceBuilder(settings, reader, 4096).job(0, asked)
    [full] = next(job)
    trials = job.send([Completion(ids, [-0.1] * len(ids), "stop")])
    ends = list(reader.think.end_ids)
    start = len(reader.think.start_ids)
    assert len(trials) == said.count("\n\n") + 1
    for request in trials:
        assert request.prompt_ids[-len(ends) :] == ends
        inner = request.prompt_ids[len(full.prompt_ids) : -len(ends)]
        assert inner == ids[: len(inner)]
        assert len(inner) >= start
    assert [len(r.prompt_ids) for r in trials] == sorted(
        (len(r.prompt_ids) for r in trials), reverse=True
    )


@pytest.mark.parametrize(
    ("text", "end_reason", "expected"),
    [
        ("The answer is \\boxed{12}.", "stop", "no_thinking"),
        ("<think>\nso 1\n\nso 2", "length", "no_think_end"),
        ("<think>\n\n</think>" + ANSWER, "stop", "empty_thinking"),
        ("<think>\nso 12\n</think>\n\n", "stop", "empty_answer"),
        ("<think>\nso 12\n</think>\n\nThe answer is 12", "length", "unfinished_answer"),
        ("<think>\nso 12\n</think>\n\nThe answer is 12.", "stop", "no_valid_answer"),
        ("<think>\nso \\boxed{3}\n</think>\n\nNo box.", "stop", "no_valid_answer"),
        ("<think>\nso 12\n</think>" + ANSWER, "stop", None),
    ],
)
def test_every_unusable_output_has_its_reason(
    reader: OutputReader, text: str, end_reason: str, expected: str | None
) -> None:
    assert read(reader, text, reason=end_reason)[0].reason == expected


def test_a_prompt_that_opens_the_thinking_makes_the_output_think_at_once(
    reader: OutputReader,
) -> None:
    parsed, _ = read(reader, f"so 12\n</think>{ANSWER}", prompt="Q\n<think>\n")
    assert (parsed.start, parsed.reason) == (0, None)


def test_a_closed_block_of_an_old_turn_does_not_count() -> None:
    """https://github.com/ggml-org/llama.cpp/pull/22323"""
    think = ThinkFormat((1,), (2,))
    assert think.locate([1, 7, 2, 8, 1], [9, 2, 5]) is not None


def test_later_think_blocks_are_counted_and_not_read(reader: OutputReader) -> None:
    parsed, _ = read(reader, f"<think>\nso 1\n</think>\n<think>\\boxed{{7}}</think>{ANSWER}")
    assert (parsed.several, parsed.answer.value) == (1, "12")


@pytest.mark.parametrize("tag", ["<think>\n", ""])
@pytest.mark.parametrize("opened", [False, True])
def test_recorded_outputs_think_whether_or_not_the_tag_was_recorded(
    reader: OutputReader, tag: str, opened: bool
) -> None:
    output = f"{tag}so 12\n</think>{ANSWER}"
    encode = reader.tokenizer.encode
    prompt = encode("Q\n<think>" if opened else "Q\n", add_special_tokens=False)
    ids = output_ids(reader.tokenizer, reader.think, prompt, output)
    parsed = reader.read(prompt, Completion(ids, [], "stop"), BOX)
    assert parsed.reason is None
    assert "12" in reader.tokenizer.decode(ids[parsed.start : parsed.end])


def test_a_tokenizer_without_a_template_gets_the_plain_question(single_newlines: Any) -> None:
    settings = parse(Reading, {"questions": [{"source": "tiny", "n": 1}]})
    asked = Question("q", "Why?", [{"role": "user", "content": "Why?"}], None, BOX, "train")
    ids = prompt_ids(single_newlines, asked, settings)
    assert single_newlines.decode(ids) == "Why?\n"


def test_no_think_tokens_is_an_error_that_names_the_setting(single_newlines: Any) -> None:
    from specexit.errors import ConfigError

    with pytest.raises(ConfigError, match=r"think\.start"):
        make_reader(single_newlines)


def test_reasons_are_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    from data_build.outputs import REASONS
    from data_build.think_text import TREATMENT

    for name in (*REASONS, *TREATMENT):
        assert f"`{name}`" in text, name
