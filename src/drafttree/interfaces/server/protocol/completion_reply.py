"""Replies of /v1/completions; a chunk of a stream has the same form as a whole reply."""

from typing import Literal

from drafttree.interfaces.server.protocol.reply_model import ReplyModel
from drafttree.interfaces.server.protocol.usage import Usage


class CompletionLogprobs(ReplyModel):
    """Per token: its text, log-probability, the likeliest tokens at its place, and where it begins in the text.

    With `echo` the first token has neither: nothing stands before it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(ReplyModel):
    """One text, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(ReplyModel):
    """A reply, or a chunk of one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    lossless: bool
    lossy: str | None = None
    quantization: str | None = None
    choices: list[CompletionChoice]
    usage: Usage | None = None
