"""`drafttree chat`: answers, commands, and a conversation that is not read twice."""

import json
import os
import pty
import select
import subprocess
import sys
from typing import Self

import pytest
from transformers import LlamaConfig

from drafttree.errors import ConfigError, ContextError, DraftTreeError, InputError
from drafttree.interfaces.cli.chat import Conversation
from testing import tiny
from testing.command_line import run

GREEDY = ("--temperature", 0, "--max-new-tokens", 24)
PLAIN = "{% for message in messages %}{{ message.content }} {% endfor %}"


def say(role: str, content: str) -> dict:
    return {"role": role, "content": content}


@pytest.fixture
def conversation(embedded):
    embedded.prefixes.clear()
    return Conversation(embedded, {"temperature": 0.0, "stop": "\nUser:"}, 24, None)


@pytest.mark.usefixtures("quick")
def test_every_line_is_answered_with_the_turns_before_it(embedded):
    first, expected = say("user", "Hello, how are you?"), []
    messages = [say("system", "Be kind."), first]
    for question in ("What do you like?", None):
        options = {"temperature": 0, "max_new_tokens": 24, "stop": "\nUser:", "reuse_prefix": False}
        expected.append(embedded.generate(messages, **options).text)
        messages += [say("assistant", expected[-1].strip()), say("user", question)]
    result = run("chat", *GREEDY, "--system", "Be kind.", input="Hello, how are you?\n\nWhat do you like?\n")
    assert result.exit_code == 0
    assert result.stdout == "".join(f"{answer}\n" for answer in expected)
    assert result.stderr.count("tokens per target pass") == 2
    assert "lossless" not in result.stderr


def test_an_answer_reads_only_the_newest_message(conversation, embedded, monkeypatch):
    forward, passes = embedded.target.forward, []

    def count(segments, **options):
        passes.append(sum(segment.nodes for segment in segments))
        return forward(segments, **options)

    monkeypatch.setattr(embedded.target, "forward", count)
    conversation.take("Tell me everything about the long way that you went to the sea with your friends.")
    whole = passes[0]
    passes.clear()
    conversation.take("Why?")
    assert passes[0] < 10 < whole


def test_the_commands(conversation, tmp_path, capsys):
    conversation.take("Hello")
    conversation.take("/policy chain:depth=2")
    conversation.take("/seed 7")
    conversation.take("And you?")
    path = tmp_path / "talk.json"
    conversation.take(f"/save {path}")
    messages = json.loads(path.read_text())
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert messages[2] == say("user", "And you?")
    assert messages[3]["content"] in capsys.readouterr().out
    conversation.take("/reset")
    assert conversation.messages == []
    conversation.take("/help")
    assert "/save FILE" in capsys.readouterr().err


def test_a_seed_repeats_an_answer(embedded):
    answers = []
    for seed in ("/seed 5", "/seed 5", "/seed 6"):
        talk = Conversation(embedded, {"temperature": 1.0}, 16, None)
        talk.take(seed)
        talk.take("Tell me a story.")
        answers.append(talk.messages[-1]["content"])
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize(
    ("line", "kind", "complaint"),
    [
        ("/nonsense", ConfigError, "there is no command /nonsense; /help lists them"),
        ("/save", ConfigError, "/save needs the name of a file"),
        ("/save /nowhere/talk.json", InputError, "/nowhere/talk.json cannot be written: No such file or directory"),
        ("/policy talom", ConfigError, "did you mean 'talon'"),
        ("/seed x", ConfigError, "/seed is 'x'; give a whole number"),
        ("word " * 2100, ContextError, "leave no room in the model's context of 2048; begin a new one with /reset"),
    ],
)
def test_what_cannot_be_done_leaves_the_conversation_as_it_was(conversation, line, kind, complaint):
    conversation.take("Hello")
    before = [*conversation.messages]
    with pytest.raises(kind, match=complaint):
        conversation.take(line)
    assert conversation.messages == before


def test_an_answer_ends_where_the_context_does(conversation, embedded, monkeypatch):
    prompt = len(embedded.new_request([say("user", "Hello")]).tokens)
    monkeypatch.setattr(embedded.target, "context", prompt + 3)
    conversation.take("Hello")
    assert len(embedded.tokenizer(conversation.messages[-1]["content"])["input_ids"]) <= 3


@pytest.mark.usefixtures("quick")
def test_a_mistake_in_piped_lines_ends_the_command():
    result = run("chat", *GREEDY, input="/nonsense\nHello\n")
    assert isinstance(result.exception, DraftTreeError)
    assert result.stdout == ""
    assert run("chat", *GREEDY, input="/quit\n/nonsense\n").exit_code == 0


@pytest.mark.usefixtures("quick")
def test_a_model_without_a_template_needs_one(embedded, monkeypatch, tmp_path):
    own = tmp_path / "plain.jinja"
    own.write_text(PLAIN)
    monkeypatch.setattr(embedded.tokenizer, "chat_template", None)
    refused = run("chat", input="Hello\n").exception
    assert "'embedded' has no chat template; give one with --chat-template FILE, or use generate" in str(refused)
    expected = embedded.generate("Hello ", temperature=0, max_new_tokens=24).text
    assert run("chat", *GREEDY, "--chat-template", own, input="Hello\n").stdout == f"{expected}\n"
    assert isinstance(run("chat", "--chat-template", tmp_path / "none", input="").exception, InputError)


class Terminal:
    """A child process that talks to a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self.ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "drafttree", *map(str, arguments)]
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.child = subprocess.Popen(command, **streams, start_new_session=True, preexec_fn=self._adopt)
        os.close(theirs)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the child, which would go on writing its endless text where a test fails."""
        self.child.kill()
        self.child.wait()
        os.close(self.ours)

    @staticmethod
    def _adopt() -> None:
        """Make standard input the controlling terminal, so that its keys send signals."""
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def wait_for(self, text: str) -> None:
        """Read until something is shown that was not shown before."""
        while text not in self.shown:
            assert select.select([self.ours], [], [], 120)[0], f"{text!r} does not follow {self.shown!r}"
            self.shown += os.read(self.ours, 1 << 16).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())


@pytest.mark.slow
def test_the_keys_of_a_terminal(embedded, tmp_path):
    own, path = tmp_path / "plain.jinja", tmp_path / "talk.json"
    own.write_text(PLAIN)
    sizes = {"vocab_size": embedded.target.vocab_size, "max_position_embeddings": 200_000}
    tiny.from_config(LlamaConfig(**tiny.GROUPED | sizes)).save_pretrained(tmp_path)
    embedded.tokenizer.save_pretrained(tmp_path)
    endless = ("--temperature", 0, "--max-new-tokens", 100_000, "--min-new-tokens", 100_000)
    command = "chat", "--target", tmp_path, "--drafter", "suffix", *endless, "--chat-template", own
    with Terminal(*command) as terminal:
        terminal.wait_for("> ")
        terminal.type("/nonsense\n")
        terminal.wait_for("there is no command /nonsense")
        terminal.wait_for("> ")
        terminal.type("Once upon a time there was\n")
        terminal.wait_for("\x1b[32m")  # accepted tokens are green
        terminal.type("\x03")
        terminal.wait_for("(interrupted)")
        terminal.wait_for("> ")
        terminal.type(f"/save {path}\n")
        terminal.wait_for("2 messages are in")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.child.wait(timeout=60) == 0
    assert json.loads(path.read_text())[1]["content"]


def test_a_conversation_that_is_not_lossless_begins_by_saying_so():
    said = "NOT lossless: lossy_window lets the target attend to the last 64 tokens and the first 4 only"
    result = run("chat", *GREEDY, "--lossy-window", 64, input="Hello\nWhy?\n")
    assert result.stderr.splitlines()[:2] == ["Loading embedded, a toy model of 10 M parameters ...", said]
    assert result.stderr.count("lossless") == 1
