"""`drafttree batch`: a text for every line of a file."""

import json
import time

import pytest

import drafttree
from drafttree.interfaces.batch import read_jobs, write_texts
from drafttree.interfaces.cli import decoders
from testing.command_line import PROMPT, complaint, run

pytestmark = pytest.mark.usefixtures("quick")
BAD = {
    "not json": "not JSON",
    "[1, 2]": "a line is an object or a string, not [1, 2]",
    '{"text": "a"}': "neither prompt nor messages",
    '{"prompt": "a", "messages": []}': "both prompt and messages",
    '{"prompt": ["a", "b"]}': "a prompt is text or a list of token ids",
    '{"prompt": ""}': "the prompt is empty",
    '{"prompt": "a", "temperatur": 1}': "did you mean 'temperature'",
    '{"prompt": "a", "max_new_tokens": 9999}': "context of 2048",
    '{"prompt": "a", "grammar": "x"}': "grammar cannot be given in a line",
    '{"messages": "hello"}': "messages are a list of objects",
    '{"id": [1], "messages": []}': "messages are a list of objects",
}


@pytest.fixture
def lines(tmp_path):
    """Writes lines to a file."""

    def write(*lines):
        path = tmp_path / "in.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return path

    return write


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_texts_are_those_of_the_decoder_in_order(lines, tmp_path, embedded):
    own = {"id": "sea", "prompt": PROMPT, "max_new_tokens": 4, "temperature": 0.9, "seed": 7, "logprobs": 1}
    source, out = lines(own, "", json.dumps("Once\u2028upon a time"), {"prompt": [1, 2, 3]}), tmp_path / "out.jsonl"
    result = run("batch", source, out, "--max-new-tokens", 6)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "3 lines: 0 had a record already, 0 failed" in result.stderr
    found = records(out)
    assert [record["line"] for record in found] == [1, 3, 4]
    assert [record.get("id") for record in found] == ["sea", None, None]
    options = {name: value for name, value in own.items() if name not in ("id", "prompt")}
    sea = embedded.generate(PROMPT, **options)
    once = embedded.generate("Once\u2028upon a time", max_new_tokens=6)
    ids = embedded.generate([1, 2, 3], max_new_tokens=6)
    assert [record["text"] for record in found] == [sea.text, once.text, ids.text]
    assert [record["tokens"] for record in found] == [sea.tokens, once.tokens, ids.tokens]
    assert (found[0]["seed"], len(found[0]["logprobs"])) == (7, 4)
    assert found[1]["finish_reason"] == "length"


def test_a_bad_line_becomes_an_error_and_the_others_are_written(lines, tmp_path):
    source, out = lines(*BAD, {"id": 9, "prompt": PROMPT}), tmp_path / "out.jsonl"
    result = run("batch", source, out, "--max-new-tokens", 2, "--json")
    assert result.exit_code == 1
    summary = json.loads(result.stdout)
    assert (summary["lines"], summary["failed"], summary["tokens"]) == (len(BAD) + 1, len(BAD), 2)
    found = records(out)
    for record, message in zip(found, BAD.values(), strict=False):
        assert message in record["error"]["message"], record
    failed = [{"line": number, **record["error"]} for number, record in enumerate(found[:-1], start=1)]
    assert summary["failures"] == failed
    assert found[-2]["id"] == [1]
    assert (found[-1]["id"], "text" in found[-1]) == (9, True)


def test_failed_lines_are_told_at_the_end_with_their_reasons(lines, tmp_path):
    source, out = lines(PROMPT, "", json.dumps(PROMPT), {"prompt": ""}), tmp_path / "out.jsonl"
    for _ in range(2):  # the second run finds the records of the first
        *told, last = run("batch", source, out, "--max-new-tokens", 2).stderr.splitlines()[-3:]
        assert told[0].startswith("line 1: InputError: not JSON (Expecting value")
        assert told[1] == "line 4: InputError: the prompt is empty; give at least one token"
        assert "2 failed" in last


def test_of_many_failed_lines_the_first_are_told(lines, tmp_path):
    source, out = lines(*["bad"] * 13), tmp_path / "out.jsonl"
    told = run("batch", source, out).stderr
    assert told.count("InputError: not JSON") == 10
    assert f"3 more lines failed; their records in {out} have the reason as their error" in told


def test_a_record_has_what_its_text_was_made_from(lines, tmp_path):
    messages = [{"role": "user", "content": "hello"}]
    asked = [{"prompt": PROMPT}, {"prompt": [1, 2]}, {"messages": messages}, {"prompt": "", "id": "none"}]
    out = tmp_path / "out.jsonl"
    run("batch", lines(*asked, json.dumps(PROMPT)), out, "--max-new-tokens", 2)
    found = [{name: record.get(name) for name in ("line", "prompt", "messages")} for record in records(out)]
    expected = [(1, PROMPT, None), (2, [1, 2], None), (3, None, messages), (4, "", None), (5, PROMPT, None)]
    assert [tuple(each.values()) for each in found] == expected


def test_an_error_of_any_kind_is_that_lines_own(lines, tmp_path, monkeypatch):
    submit = drafttree.Engine.submit

    def fail(self, prompt, **options):
        if prompt == "fail":
            raise RuntimeError("out of\nmemory")
        return submit(self, prompt, **options)

    monkeypatch.setattr(drafttree.Engine, "submit", fail)
    source, out = lines('"fail"', json.dumps(PROMPT)), tmp_path / "out.jsonl"
    assert run("batch", source, out, "--max-new-tokens", 2).exit_code == 1
    assert records(out)[0]["error"] == {"type": "RuntimeError", "message": "out of memory"}
    assert records(out)[1]["text"]


def test_messages_are_given_to_the_decoder(lines, tmp_path, monkeypatch):
    given, submit = [], drafttree.Engine.submit

    def submit_other(self, prompt, **options):
        given.append(prompt)
        return submit(self, PROMPT, **options)

    monkeypatch.setattr(drafttree.Engine, "submit", submit_other)
    messages = [{"role": "user", "content": "hello"}]
    assert run("batch", lines({"messages": messages}), tmp_path / "out", "--max-new-tokens", 2).exit_code == 0
    assert given == [messages]


def test_an_interrupted_run_goes_on(lines, tmp_path, monkeypatch):
    source, out = lines(*(json.dumps(f"{PROMPT} {number}") for number in range(3)), "bad"), tmp_path / "out.jsonl"
    command = ["batch", source, out, "--max-new-tokens", 3]
    run(*command)
    whole, results = out.read_text(), []
    written = [line.partition(', "seconds"')[0] for line in whole.splitlines()]
    out.unlink()

    def interrupted(self, timeout=None):
        if len(results) == 2:
            raise KeyboardInterrupt
        results.append(wait(self, timeout))
        return results[-1]

    wait = drafttree.Handle.result
    monkeypatch.setattr(drafttree.Handle, "result", interrupted)
    result = run(*command)
    assert "the same command continues from" in result.stderr
    kept = out.read_text()
    assert len(kept.splitlines()) == 2
    out.write_text(f'{kept}{{"line": 3, "input": "cut sh')
    monkeypatch.setattr(drafttree.Handle, "result", wait)
    result = run(*command, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["skipped"] == 2
    assert out.read_text().startswith(kept)
    assert [line.partition(', "seconds"')[0] for line in out.read_text().splitlines()] == written
    result = run(*command, "--json")
    assert (json.loads(result.stdout)["skipped"], json.loads(result.stdout)["failed"]) == (4, 1)
    assert result.exit_code == 1


def test_records_of_another_input_or_command_are_refused(lines, tmp_path, capsys):
    source, out = lines(json.dumps(PROMPT)), tmp_path / "out.jsonl"
    run("batch", source, out, "--max-new-tokens", 2)
    kept = out.read_text()
    assert "this record belongs to another prompt or another command" in complaint(
        capsys, "batch", source, out, "--max-new-tokens", 3
    )
    lines('"another"')
    assert "line 1: this record belongs to another prompt" in complaint(
        capsys, "batch", source, out, "--max-new-tokens", 2
    )
    assert out.read_text() == kept
    out.write_text("notes\n")
    assert "this is not a record of drafttree batch" in complaint(capsys, "batch", source, out)


def test_files_that_cannot_be_used_are_named(lines, tmp_path, capsys):
    source = lines(json.dumps(PROMPT))
    assert "into the file of the prompts" in complaint(capsys, "batch", source, source)
    assert "No such file" in complaint(capsys, "batch", tmp_path / "nowhere", tmp_path / "out")
    assert "cannot be written" in complaint(capsys, "batch", source, tmp_path / "nowhere" / "out")
    assert "the file has no lines" in complaint(capsys, "batch", lines(""), tmp_path / "out")


def test_every_record_says_whether_its_text_is_lossless(lines, tmp_path, monkeypatch):
    monkeypatch.setattr(decoders, "load", drafttree.load)
    source, out = lines({"prompt": PROMPT}, {"prompt": "One"}), tmp_path / "out.jsonl"
    assert (
        run("batch", source, out, "--max-new-tokens", 2, "--temperature", 0.8, "--verifier", "lossy-typical").exit_code
        == 0
    )
    said = "the verifier lossy-typical does not follow the target's distribution"
    assert [(record["lossless"], record["lossy"]) for record in records(out)] == [(False, said)] * 2


def test_a_file_that_was_begun_before_records_said_so_goes_on(lines, tmp_path):
    source, out = lines({"prompt": PROMPT}, {"prompt": "One"}), tmp_path / "out.jsonl"
    command = ("batch", source, out, "--max-new-tokens", 2)
    run(*command)
    first, second = records(out)
    first.pop("lossless")
    out.write_text(json.dumps(first) + "\n")
    assert run(*command).exit_code == 0
    assert [record.get("lossless") for record in records(out)] == [None, True]
    assert records(out)[1]["text"] == second["text"]


def request(custom_id, url="/v1/chat/completions", **body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "embedded", **body}}


HELLO = [{"role": "user", "content": "Where is the ship?"}]
NO_REQUESTS = {
    "custom_id is 7": request(7, messages=HELLO),
    "custom_id is None": {"method": "POST", "url": "/v1/completions", "body": {}},
    "method is 'GET'": request("a", messages=HELLO) | {"method": "GET"},
    "url is '/v1/embeddings'; give one of /v1/chat/completions": request("b", "/v1/embeddings", input="a"),
    "body is not an object": request("c") | {"body": "hello"},
    "body.stream is set": request("d", messages=HELLO, stream=True),
}


def test_lines_of_openais_batches_get_the_replies_of_the_server(lines, tmp_path, embedded):
    chat = request("chat", messages=HELLO, max_tokens=6, temperature=0)
    plain = request("plain", "/v1/completions", prompt=PROMPT, max_tokens=5, temperature=0)
    reply = request("reply", "/v1/responses", input="Where is the ship?", max_output_tokens=4, temperature=0)
    out = tmp_path / "out.jsonl"
    result = run("batch", lines(chat, plain, {"prompt": PROMPT, "max_new_tokens": 5}, reply), out, "--json")
    summary = json.loads(result.stdout)
    assert (summary["lines"], summary["failed"], summary["tokens"]) == (4, 0, 20)
    found = records(out)
    assert [record.get("custom_id") for record in found] == ["chat", "plain", None, "reply"]
    assert {record["response"]["status_code"] for record in found if "custom_id" in record} == {200}
    answers = [record["response"]["body"] for record in found if "custom_id" in record]
    assert answers[0]["choices"][0]["message"]["content"] == embedded.generate(HELLO, max_new_tokens=6).text
    assert answers[1]["choices"][0]["text"] == found[2]["text"] == embedded.generate(PROMPT, max_new_tokens=5).text
    assert answers[2]["output"][0]["content"][0]["text"]
    assert found[0].keys() == {"id", "custom_id", "response", "error", "line", "input"}
    assert (found[0]["id"], found[0]["error"]) == (f"batch_req_{found[0]['input']}", None)
    assert found[0]["response"]["request_id"].startswith("req_")


def test_a_bad_request_of_a_batch_is_an_error_of_its_line(lines, tmp_path):
    other = request("other", messages=HELLO) | {"body": {"model": "gpt-4", "messages": HELLO}}
    wrong = request("wrong", messages=HELLO, temperature=-1)
    no_number = json.dumps(request("nan", messages=HELLO, temperature=1)).replace(": 1}", ": NaN}")
    no_text = request("half", messages=[{"role": "user", "content": "\ud800"}])
    good = request("good", messages=HELLO, max_tokens=2)
    source, out = lines(*NO_REQUESTS.values(), other, wrong, no_number, no_text, good), tmp_path / "out.jsonl"
    result = run("batch", source, out, "--json")
    assert result.exit_code == 1
    found, failures = records(out), json.loads(result.stdout)["failures"]
    for record, message in zip(found, NO_REQUESTS, strict=False):
        assert record["response"] is None
        assert record["error"].keys() == {"code", "message"}
        assert message in record["error"]["message"]
    refused = [record["response"] for record in found[-5:-1]]
    assert [reply["status_code"] for reply in refused] == [404, 400, 400, 400]
    messages = [reply["body"]["error"]["message"] for reply in refused]
    assert "'gpt-4' is not served; 'embedded' is" in messages[0]
    assert messages[2] == "temperature: give a finite number, not NaN"
    assert messages[3] == "messages.0.content: this holds half a surrogate pair, which is not text"
    assert [failure["line"] for failure in failures] == list(range(1, len(found)))
    types = ["model_not_found", "greater_than_equal", "finite_number", "string_unicode"]
    assert [failure["type"] for failure in failures[-4:]] == types
    assert found[-1]["response"]["status_code"] == 200


@pytest.mark.parametrize("again", ["one", {"custom_id": "one"}], ids=["a request", "a bad line"])
def test_two_requests_of_one_custom_id_are_refused_before_anything_is_written(capsys, lines, tmp_path, again):
    last = request(again, messages=HELLO) if isinstance(again, str) else again
    source = lines(request("one", messages=HELLO), "not json", "", request("two", messages=HELLO), last)
    out = tmp_path / "out.jsonl"
    told = complaint(capsys, "batch", source, out)
    assert 'lines 1 and 5 have the custom_id "one"; give each its own' in told
    assert not out.exists()


def test_a_batch_of_requests_goes_on_after_an_interruption(lines, tmp_path):
    source = lines(*(request(name, messages=HELLO, max_tokens=2) for name in "abc"))
    out = tmp_path / "out.jsonl"
    assert run("batch", source, out).exit_code == 0
    first, *_ = written = out.read_text().splitlines(keepends=True)
    out.write_text(first)
    assert "3 lines: 1 had a record already, 0 failed" in run("batch", source, out).stderr
    again = records(out)
    assert again[0] == json.loads(first)
    assert [record["id"] for record in again] == [json.loads(line)["id"] for line in written]


def test_requests_call_the_model_by_the_name_it_is_given(capsys, lines, tmp_path):
    out = tmp_path / "out.jsonl"
    source = lines(request("a", messages=HELLO, max_tokens=2) | {"body": {"model": "gpt-4", "messages": HELLO}})
    assert run("batch", source, out, "--served-model-name", "gpt-4").exit_code == 0
    assert records(out)[0]["response"]["body"]["model"] == "gpt-4"
    assert "this record belongs to another prompt or another command" in complaint(capsys, "batch", source, out)


def test_options_of_the_command_are_not_for_requests(capsys, lines, tmp_path):
    source = lines(request("a", messages=HELLO))
    assert "temperature is given" in complaint(capsys, "batch", source, tmp_path / "out.jsonl", "--temperature", 1)


def test_a_batch_of_requests_that_is_left_ends_its_texts(lines, embedded):
    long = [request(str(number), messages=HELLO, min_tokens=1500, max_tokens=1500) for number in range(60)]
    made = write_texts(embedded, read_jobs(lines(request("first", messages=HELLO, max_tokens=1), *long), ""), {})
    assert next(made)["custom_id"] == "first"
    begun = time.perf_counter()
    made.close()
    assert time.perf_counter() - begun < 10  # the texts take minutes
