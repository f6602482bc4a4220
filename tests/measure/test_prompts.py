import gzip
import io
import json
import sys

import pytest

from drafttree.errors import InputError
from drafttree.measure.prompts import (
    EXCERPT,
    Example,
    read_examples,
    read_prompt,
    read_prompts,
    spread_examples,
)


def write(path, *lines):
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


class Stdin(io.TextIOWrapper):
    def __init__(self, data, terminal=False):
        super().__init__(io.BytesIO(data))
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def test_a_jsonl_file_gives_prompts_texts_and_first_turns(tmp_path):
    entries = [{"prompt": "one"}, {"text": "two"}, {"turns": ["three", "four"]}]
    path = write(tmp_path / "p.jsonl", *map(json.dumps, entries), "")
    assert read_prompts(path) == ["one", "two", "three"]


def test_compressed_and_plain_text_files_and_several_of_them(tmp_path):
    first = write(tmp_path / "a.jsonl.gz", json.dumps({"prompt": "one"}))
    second = write(tmp_path / "b.txt", "two", "", "thrée")
    assert read_prompts([first, second]) == ["one", "two", "thrée"]
    assert read_prompts([first, second], limit=2) == ["one", "two"]


def test_a_wikitext_file_gives_the_beginnings_of_its_articles(tmp_path):
    long = "word " * EXCERPT
    path = write(
        tmp_path / "w.raw.gz", " ", " = First = ", " ", " Text . ", " = = Part = = ", " More . ", " = Second = ", long
    )
    first, second = read_prompts(path)
    assert first == "= First = \n \n Text . \n = = Part = = \n More ."
    assert second.startswith("= Second = \nword")
    assert EXCERPT - 5 <= len(second) <= EXCERPT


def test_turns_after_the_first_and_the_category_are_kept(tmp_path):
    line = {"prompt": "one", "turns": ["one", "two", "three"], "category": "writing"}
    (found,) = read_examples(write(tmp_path / "p.jsonl", json.dumps(line)))
    assert found == Example("one", "writing", ("two", "three"))


def test_the_document_of_a_prompt_is_its_own_field_or_its_title(tmp_path):
    lines = [
        {"text": "one", "title": "Emma"},
        {"text": "two", "title": "Emma", "document": "speech"},
        {"text": "three"},
    ]
    path = write(tmp_path / "p.jsonl", *map(json.dumps, lines))
    assert [each.document for each in read_examples(path)] == ["Emma", "speech", None]


def test_a_category_chooses_the_lines_it_begins(tmp_path):
    lines = [{"prompt": str(number), "category": name} for number, name in enumerate(["qa", "mt/a", "mt/b", "mt/c"])]
    path = write(tmp_path / "p.jsonl", *map(json.dumps, lines), '{"prompt": "none"}')
    assert [each.prompt for each in read_examples(path, 2, category="mt")] == ["1", "2"]
    assert [each.prompt for each in spread_examples([path], 2, category="mt/")] == ["1", "2"]


def test_a_category_without_prompts_is_named_with_those_there_are(tmp_path):
    path = write(tmp_path / "p.jsonl", '{"prompt": "one", "category": "qa"}', '{"prompt": "two", "category": "math"}')
    with pytest.raises(InputError, match="no prompts in it of the category 'code'; known: math, qa"):
        read_examples(path, category="code")


def test_long_texts_are_whole_where_no_excerpt_is_wanted(tmp_path):
    text = "sentence " * 200
    path = write(tmp_path / "p.jsonl", json.dumps({"text": text}))
    articles = write(tmp_path / "w.raw", " = First = ", text)
    assert read_examples(path, excerpt=None)[0].prompt == text
    assert read_examples(articles, excerpt=None)[0].prompt.endswith(text.strip())


def test_examples_spread_over_files(tmp_path):
    first = write(tmp_path / "a.txt", *(f"a{index}" for index in range(10)))
    second = write(tmp_path / "b.txt", "b0", "b1")

    def spread(*files, limit=None):
        return [example.prompt for example in spread_examples(files, limit)]

    assert spread(first, second, limit=6) == ["a0", "a3", "a6", "b0", "b1"]
    assert spread(first, second, limit=3) == ["a0", "a5", "b0"]
    assert spread(second, first, limit=1) == ["b0"]
    assert len(spread(first, second)) == 12


def test_a_long_text_is_cut_at_a_whole_word(tmp_path):
    path = write(tmp_path / "p.jsonl", json.dumps({"text": "sentence " * 500}))
    (prompt,) = read_prompts(path)
    assert EXCERPT - 10 < len(prompt) <= EXCERPT
    assert prompt.endswith(" sentence")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ('{"id": 1}', "neither 'prompt'"),
        ('{"prompt": 3}', "'prompt' holds no text"),
        ('{"prompt": "  "}', "'prompt' holds no text"),
        ('{"turns": []}', "'turns' holds no text"),
        ('{"prompt": "one", "category": 3}', "'category' holds no text"),
        ('{"prompt": "one", "turns": ["one", 2]}', "'turns' holds no text"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, reason):
    path = write(tmp_path / "p.jsonl", '{"prompt": "fine"}', line)
    with pytest.raises(InputError, match=rf"p\.jsonl, line 2: {reason}"):
        read_prompts(path)


def test_a_bad_line_behind_the_limit_is_not_read(tmp_path):
    assert read_prompts(write(tmp_path / "p.jsonl", '{"prompt": "fine"}', "{"), limit=1) == ["fine"]


def test_a_line_that_is_not_utf8_is_named_with_its_number(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(InputError, match="line 2: not UTF-8"):
        read_prompts(path)


def test_files_that_cannot_be_used(tmp_path):
    broken = tmp_path / "p.jsonl.gz"
    broken.write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 99)[:-12])
    plain = tmp_path / "q.jsonl.gz"
    plain.write_bytes(b"no gzip")
    for path, reason in [
        (tmp_path / "none.txt", "No such file"),
        (tmp_path / "p.csv", "not a prompt file"),
        (write(tmp_path / "empty.txt"), "no prompts"),
        (broken, "cannot be read"),
        (plain, "cannot be read"),
    ]:
        with pytest.raises(InputError, match=reason):
            read_prompts(path)


def test_the_prompt_is_the_argument_or_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin("from a pipe ü\r\n".encode()))
    assert read_prompt("an argument") == "an argument"
    assert read_prompt("-") == "from a pipe ü"
    monkeypatch.setattr(sys, "stdin", Stdin(b"two\nlines\n"))
    assert read_prompt(None) == "two\nlines"


@pytest.mark.parametrize(
    ("stdin", "argument", "reason"),
    [
        (Stdin(b"", terminal=True), None, "no prompt"),
        (Stdin(b"\n"), None, "empty"),
        (Stdin(b"ab\xff"), "-", "not UTF-8"),
        (None, "-", "closed"),
        (Stdin(b"x"), "", "empty"),
        (Stdin(b"x"), "\udcff", "not UTF-8"),
    ],
)
def test_prompts_that_cannot_be_used(monkeypatch, stdin, argument, reason):
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(InputError, match=reason):
        read_prompt(argument)


def test_standard_input_that_fails(monkeypatch):
    class Failing(Stdin):
        @property
        def buffer(self):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stdin", Failing(b""))
    with pytest.raises(InputError, match="Input/output error"):
        read_prompt("-")


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path):
    for name, line in {"a.txt": "one", "a.jsonl": '{"prompt": "one"}'}.items():
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + line.encode())
        assert read_prompts(path) == ["one"]


@pytest.mark.parametrize("line", ['{"prompt": "\\ud800"}', "[" * 200_000])
def test_what_json_allows_and_text_does_not_is_a_bad_line(tmp_path, line):
    path = write(tmp_path / "p.jsonl", '{"prompt": "one"}', line)
    with pytest.raises(InputError, match=r"p.jsonl, line 2: "):
        read_prompts(path)
