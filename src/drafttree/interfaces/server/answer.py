"""One answer of a chat, as the pieces of its text make it: for a stream, and as a whole."""

import uuid

from drafttree.interfaces.server.dialect.reader import AnswerReader, CallArguments, CallBegun, Part, Said, Thought
from drafttree.interfaces.server.protocol.replies import (
    AnswerMessage,
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    Delta,
    FinishReason,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
)
from drafttree.interfaces.server.text_pieces import Piece, ScoredToken, TokenNames


class Answer:
    """An answer while it is written.

    Args:
        index: its place among the answers of a request.
        names: the tokens by name, None where no log-probabilities are wanted.
        reader: tells thinking and calls of tools from what is said.
    """

    def __init__(self, index: int, names: TokenNames | None, reader: AnswerReader) -> None:
        self._index, self._names, self._reader = index, names, reader
        self._said: list[str] = []
        self._thoughts: list[str] = []
        self._generated = 0
        self._origins: list[int] = []
        self._calls: list[ToolCall] = []
        self._logprobs: list[TokenLogprob] = []
        self._told = 0
        self._finish_reason: FinishReason = "length"

    def begin(self) -> list[ChatChunkChoice]:
        """The first chunk of a stream, which says whose turn it is."""
        return [self._chunk(Delta(role="assistant", content=""), None)]

    def add(self, piece: Piece) -> list[ChatChunkChoice]:
        """What a piece of text adds: a chunk with text that is said has the log-probabilities of its own tokens."""
        final = piece.finish_reason is not None
        self._generated += piece.generated
        self._origins += piece.origins
        if self._names:
            self._logprobs += [_named(scored, self._names) for scored in piece.tokens]
        chunks: list[ChatChunkChoice] = []
        for part in self._reader.read(piece.text, final=final):
            logprobs = None
            if isinstance(part, Said):
                begin, end = part.begin, part.begin + len(part.text)
                chunks += self._scored(min(self._tokens_before(begin), self._origins[begin]))
                logprobs = self._score(self._tokens_before(end))
            chunks.append(self._chunk(self._delta(part), logprobs))
        chunks += self._scored(len(self._logprobs) if final else self._tokens_before(self._reader.known))
        return [*chunks, self._end(piece.finish_reason)] if piece.finish_reason else chunks

    @property
    def whole(self) -> ChatChoice:
        """The whole answer."""
        content, thoughts = "".join(self._said), "".join(self._thoughts)
        silent = not content and bool(self._calls or thoughts)
        message = AnswerMessage(role="assistant", content=None if silent else content, refusal=None)
        if thoughts:
            message.reasoning_content = thoughts
        if self._calls:
            message.tool_calls = self._calls
        logprobs = None if self._names is None else ChatLogprobs(content=self._logprobs, refusal=None)
        return ChatChoice(index=self._index, message=message, logprobs=logprobs, finish_reason=self._finish_reason)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that are thinking, the marks around it included."""
        return sum(
            (self._generated if end is None else self._tokens_before(end)) - self._tokens_before(begin)
            for begin, end in self._reader.thoughts
        )

    def _tokens_before(self, character: int) -> int:
        return self._origins[character - 1] + 1 if character else 0

    def _scored(self, tokens: int) -> list[ChatChunkChoice]:
        """A chunk with the log-probabilities of the tokens before a place that no chunk has had, if there are any."""
        logprobs = self._score(tokens)
        return [self._chunk(Delta(), logprobs)] if logprobs and logprobs.content else []

    def _chunk(self, delta: Delta, logprobs: ChatLogprobs | None) -> ChatChunkChoice:
        return ChatChunkChoice(index=self._index, delta=delta, logprobs=logprobs, finish_reason=None)

    def _end(self, reason: FinishReason) -> ChatChunkChoice:
        """The last chunk, which says why the answer ends."""
        called = reason == "stop" and self._calls and not self._reader.in_call
        self._finish_reason = "tool_calls" if called else reason
        return ChatChunkChoice(index=self._index, delta=Delta(), logprobs=None, finish_reason=self._finish_reason)

    def _delta(self, part: Part) -> Delta:
        """A part as a chunk has it; it joins the whole."""
        match part:
            case Said(text=text):
                self._said.append(text)
                return Delta(content=text)
            case Thought(text=text):
                self._thoughts.append(text)
                return Delta(reasoning_content=text)
            case CallBegun(index=index, name=name):
                call = ToolCall(
                    id=f"call_{uuid.uuid4().hex}", type="function", function=CalledFunction(name=name, arguments="")
                )
                self._calls.append(call)
                began = call.function.model_copy()
                return Delta(tool_calls=[ToolCallDelta(index=index, id=call.id, type=call.type, function=began)])
            case CallArguments(index=index, text=text):
                self._calls[index].function.arguments += text
                return Delta(tool_calls=[ToolCallDelta(index=index, function=CalledFunction(arguments=text))])

    def _score(self, tokens: int) -> ChatLogprobs | None:
        """The log-probabilities of the tokens before a place that no chunk has had."""
        if self._names is None:
            return None
        found = self._logprobs[self._told : tokens]
        self._told += len(found)
        return ChatLogprobs(content=found, refusal=None)


def _named(scored: ScoredToken, names: TokenNames) -> TokenLogprob:
    token, logprob, top = scored
    likeliest = [
        TopLogprob(token=names.name(each), bytes=list(names.bytes(each)), logprob=value) for each, value in top.items()
    ]
    assert logprob is not None  # an answer's tokens stand behind a prompt
    return TokenLogprob(
        token=names.name(token), bytes=list(names.bytes(token)), logprob=logprob, top_logprobs=likeliest
    )
