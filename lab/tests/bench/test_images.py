"""Reading prompts with images beside transformers: both write the same token, and the rows are made of the runs."""

import json

import pytest

from drafttree_lab.bench import images
from drafttree_lab.bench.images import (
    BEHIND_IMAGES,
    BEHIND_TEXT,
    DRAFTTREE,
    SHAPES,
    TRANSFORMERS,
    ImageRace,
    ImageShape,
)
from lab_helpers.image_shapes import SMALL
from testing.command_line import complaint, run


@pytest.fixture
def small(monkeypatch) -> ImageShape:
    """A shape of few layers, under the name of a larger one."""
    monkeypatch.setitem(SHAPES, "smolvlm-256m", SMALL)
    return SMALL


def test_both_programs_have_the_same_model_and_prompt(small):
    race = ImageRace.of(small, "float32", 4)
    inputs = race.prompt(2)
    length = inputs["input_ids"].shape[1]
    assert (inputs["input_ids"] == race.module.config.image_token_id).sum() == 2 * 64
    expected = race.module.generate(**inputs, max_new_tokens=4, do_sample=False, pad_token_id=0)[0, length:].tolist()
    assert race.decoder.generate(inputs, max_new_tokens=4, ignore_eos=True).tokens == expected


@pytest.mark.usefixtures("small")
def test_a_row_for_each_number_of_images(monkeypatch):
    seconds = {TRANSFORMERS: 0.5, DRAFTTREE: 0.25, BEHIND_IMAGES: 0.002, BEHIND_TEXT: 0.001}
    monkeypatch.setattr(ImageRace, "ways", property(lambda _: {name: lambda _, s=s: s for name, s in seconds.items()}))
    report = json.loads(
        run("bench", "images", "--images", "1,3", "--dtype", "float32", "--repeats", "2", "--json").stdout
    )
    assert [row["images"] for row in report["reading"]] == ["1", "3"]
    assert [row[DRAFTTREE] for row in report["reading"]] == [0.25, 0.25]
    assert report["reading"][0]["transformers / drafttree"].startswith("2.00")
    assert report["decoding"][0][BEHIND_IMAGES] == 2.0
    assert report["decoding"][0]["text / images"].startswith("0.50")
    assert report["decoding"][1]["tokens"] == 2 * images.TEXT_TOKENS + 3 * 65


def test_a_wrong_shape_is_named(capsys):
    assert "smolvlm-256m" in complaint(capsys, "bench", "images", "--shape", "smolvlm")
