"""Prompts with images in an engine: how long other texts wait for them, and that a failing one ends alone."""

import logging
import math
import time
from contextlib import contextmanager

import pytest
import torch

import drafttree
from drafttree import Engine
from drafttree.core.errors import ModelError
from drafttree.engine import round_loop
from drafttree.engine.batching import loop
from drafttree.engine.batching.loop import LONGEST_PART
from drafttree.models import TargetModel
from helpers.image_models import FAMILIES, IMAGE, ImageModel, image_model

NEW = 16
LONG = 60
OPTIONS = {"max_new_tokens": NEW, "ignore_eos": True}
TEXT = [2, 5, 6, 7, 8]
TREE = "talon:budget=12,width=3"
LATER = [7, 8, 9, 11, 12, 7, 8, 13] * 4
"""A question behind an image that is read in several parts."""


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request) -> ImageModel:
    return image_model(request.param)


@pytest.fixture
def qwen() -> ImageModel:
    return image_model("qwen2_5_vl")


def decoder_of(model: ImageModel, drafter: str = "lookup") -> drafttree.Decoder:
    return drafttree.load(model.module, drafter, TREE)


@contextmanager
def reading_images(monkeypatch, before):
    """Call a function before the images of each prompt are read."""
    read = TargetModel.read_images

    def reading(target, cache, tokens, inputs, **options):
        before(tokens)
        return read(target, cache, tokens, inputs, **options)

    with monkeypatch.context() as patch:
        patch.setattr(TargetModel, "read_images", reading)
        yield


@pytest.mark.parametrize("longest", [1, 8, LONGEST_PART])
def test_the_text_behind_images_is_read_in_parts(model, longest, monkeypatch):
    """And nothing else changes the text."""
    monkeypatch.setattr(round_loop, "LONGEST_PART", longest)
    monkeypatch.setattr(loop, "LONGEST_PART", longest)
    inputs = model.prompt([2, 5, 6], [7, 8], LATER)
    tokens = inputs["input_ids"][0].tolist()
    images_end = len(tokens) - tokens[::-1].index(IMAGE)
    expected = model.generate(inputs, NEW)
    decoder = decoder_of(model)
    read = []
    with reading_images(monkeypatch, lambda tokens: read.append(len(tokens))):
        alone = decoder.generate(inputs, **OPTIONS)
        with Engine(decoder, prefix_tokens=0) as engine:
            together = engine.submit(inputs, **OPTIONS).result(60)
            rows = [turn.prefill_rows for turn in engine.metrics.rounds if turn.prefill_rows]
    assert read == [images_end] * 2
    assert alone.tokens == together.tokens == expected
    assert alone.metrics.prefill_passes == 1 + math.ceil((len(tokens) - 1 - images_end) / longest)
    assert sum(rows) == len(tokens) - 1 - images_end
    assert max(rows) <= longest


def test_texts_go_on_between_the_images_of_several_prompts(qwen):
    decoder = decoder_of(qwen)
    prompts = [qwen.inputs, qwen.other_image(), qwen.prompt([2, 5, 6], [7], LATER)]
    expected = [qwen.generate(inputs, NEW) for inputs in prompts]
    alone = decoder.generate(TEXT, max_new_tokens=LONG, ignore_eos=True).tokens
    with Engine(decoder) as engine:
        text = engine.submit(TEXT, max_new_tokens=LONG, ignore_eos=True)
        next(iter(text))
        with engine._thread.changed:
            handles = [engine.submit(inputs, **OPTIONS) for inputs in prompts]
        assert [handle.result(60).tokens for handle in handles] == expected
        assert text.result(60).tokens == alone


def test_only_one_prompts_images_are_read_before_each_round(qwen, monkeypatch):
    decoder = decoder_of(qwen, "none")
    prompts = [qwen.inputs, qwen.other_image(), qwen.prompt([2, 5, 6], [7], [8, 9])]
    batch = decoder.batch_loop(8)
    writing, *reading = [decoder.prepare(prompt, **OPTIONS) for prompt in (TEXT, *prompts)]
    read = []
    with reading_images(monkeypatch, lambda tokens: read.append(len(tokens))):
        batch.add(writing)
        batch.step()
        batch.step()
        for request in reading:
            batch.add(request)
        tokens = len(writing.tokens)
        for step in (1, 2, 3):
            batch.step()
            assert len(read) == step
            assert len(writing.tokens) > tokens
            tokens = len(writing.tokens)
        while batch.busy:
            batch.step()
    assert len(read) == 3
    for request, inputs in zip(reading, prompts, strict=True):
        assert request.text.generated == qwen.generate(inputs, NEW)


def test_where_nobody_waits_all_images_are_read_at_once(qwen, monkeypatch):
    decoder = decoder_of(qwen, "none")
    batch = decoder.batch_loop(8)
    read = []
    for inputs in (qwen.inputs, qwen.other_image()):
        batch.add(decoder.prepare(inputs, **OPTIONS))
    with reading_images(monkeypatch, lambda tokens: read.append(len(tokens))):
        batch.step()
    assert len(read) == 2
    assert batch.metrics.image_wait_seconds == 0


@pytest.mark.parametrize("max_token_gap", [0.001, math.inf])
def test_a_reading_that_holds_other_texts_too_long_is_told_once(qwen, max_token_gap, monkeypatch, caplog):
    decoder = decoder_of(qwen, "none")
    batch = decoder.batch_loop(8, max_token_gap=max_token_gap)
    writing = decoder.prepare(TEXT, max_new_tokens=LONG, ignore_eos=True)
    with caplog.at_level(logging.WARNING, "drafttree"), reading_images(monkeypatch, lambda _: time.sleep(0.3)):
        for added in (writing, *(decoder.prepare(inputs, **OPTIONS) for inputs in (qwen.inputs, qwen.other_image()))):
            batch.add(added)
            batch.step()
            batch.step()
            assert not writing.finish_reason
    tokens = qwen.inputs["input_ids"][0].tolist()
    images_end = len(tokens) - tokens[::-1].index(IMAGE)
    assert batch.metrics.image_wait_seconds == pytest.approx(0.6, abs=0.3)
    told = [record.getMessage() for record in caplog.records if "images" in record.getMessage()]
    if max_token_gap < 1:
        (message,) = told
        assert message.startswith(f"reading {images_end} tokens with images took 0.")
        assert "s, and 1 other texts waited for it, longer than" in message
        assert "(max_token_gap)" in message
    else:
        assert not told


def test_a_quick_reading_is_not_told(qwen, caplog):
    decoder = decoder_of(qwen)
    with caplog.at_level(logging.WARNING, "drafttree"), Engine(decoder, max_token_gap=60.0) as engine:
        text = engine.submit(TEXT, max_new_tokens=LONG, ignore_eos=True)
        next(iter(text))
        engine.submit(qwen.inputs, **OPTIONS).result(60)
        text.result(60)
    assert "images" not in caplog.text


ERRORS = {
    "model": ModelError("a prompt with images cannot be read"),
    "module": RuntimeError("the vision part broke"),
    "memory": torch.OutOfMemoryError("CUDA out of memory"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_reading_that_fails_ends_its_text_alone(qwen, name, monkeypatch):
    """With memory that never suffices, after other texts have given up theirs."""
    decoder = decoder_of(qwen)
    failing = qwen.prompt([3, 3, 3], [7, 8, 9])

    def fail(tokens):
        if tokens[:3] == [3, 3, 3]:
            raise ERRORS[name]

    with reading_images(monkeypatch, fail), Engine(decoder) as engine:
        with engine._thread.changed:
            text = engine.submit(TEXT, **OPTIONS)
            broken = engine.submit(failing, **OPTIONS)
            other = engine.submit(qwen.inputs, **OPTIONS)
        with pytest.raises(type(ERRORS[name]), match=str(ERRORS[name])):
            broken.result(60)
        assert other.result(60).tokens == qwen.generate(qwen.inputs, NEW)
        assert text.result(60).tokens == decoder.plain().generate(TEXT, **OPTIONS).tokens
        assert engine.metrics.failed == 1
    assert decoder.generate(failing, **OPTIONS).tokens == qwen.generate(failing, NEW)


def test_images_that_the_module_refuses_end_their_text_alone(model):
    """Features of two images for the placeholders of one."""
    name = "pixel_values"
    broken_inputs = dict(model.inputs)
    broken_inputs[name] = torch.cat([model.inputs[name]] * 2)
    for grid in {"image_grid_thw", "image_sizes"} & {*broken_inputs}:
        broken_inputs[grid] = torch.cat([model.inputs[grid]] * 2)
    decoder = decoder_of(model)
    backend = decoder.target.backend
    with Engine(decoder) as engine:
        with engine._thread.changed:
            text = engine.submit(TEXT, **OPTIONS)
            broken = engine.submit(broken_inputs, **OPTIONS)
            other = engine.submit(model.inputs, **OPTIONS)
        with pytest.raises(Exception, match=r"(?i)image|shape|size"):
            broken.result(60)
        other_tokens = other.result(60).tokens
        text.result(60)
        assert decoder.target.backend is backend
        assert other_tokens == model.generate(model.inputs, NEW)
        assert text.result(60).tokens == decoder.plain().generate(TEXT, **OPTIONS).tokens


@pytest.mark.parametrize("calls", [{1}, {2}], ids=str)
def test_memory_that_runs_out_while_images_are_read_changes_no_text(model, calls, monkeypatch):
    decoder = decoder_of(model)
    prompts = [model.inputs, model.other_image()]
    read = []

    def fail(tokens):
        read.append(tokens)
        if len(read) in calls:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with reading_images(monkeypatch, fail), Engine(decoder) as engine:
        with engine._thread.changed:
            handles = [engine.submit(inputs, **OPTIONS) for inputs in (TEXT, *prompts)]
        results = [handle.result(60) for handle in handles]
    assert [result.tokens for result in results[1:]] == [model.generate(inputs, NEW) for inputs in prompts]
    assert engine.metrics.preempted > 0
    assert engine.metrics.failed == 0


def test_a_text_that_starts_over_reads_its_images_again(model, monkeypatch):
    """Memory runs out while it is written, so it has more tokens than its prompt when it is read again."""
    decoder = decoder_of(model)
    prompts = [model.inputs, model.other_image(), model.prompt([3, 3], [7, 8], [9])]
    run = TargetModel.forward
    passes = []

    def failing(target, segments, **options):
        output = run(target, segments, **options)
        passes.append(len(segments))
        if len(passes) in (8, 12) and len(segments) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return output

    monkeypatch.setattr(TargetModel, "forward", failing)
    with Engine(decoder, budget=4) as engine:
        with engine._thread.changed:
            handles = [engine.submit(inputs, **OPTIONS) for inputs in prompts]
        found = [handle.result(60).tokens for handle in handles]
    assert engine.metrics.preempted > 0
    assert found == [model.generate(inputs, NEW) for inputs in prompts]
