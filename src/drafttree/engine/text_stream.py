"""A text that is streamed: its chunks as rounds add them, and in the end the whole."""

from collections.abc import Generator, Iterator

from drafttree.core.errors import UnfinishedTextError
from drafttree.engine.generation import Chunk, Generation
from drafttree.engine.request import Request


class TextStream(Iterator[Chunk]):
    """What each round adds to a text, and its result when it has ended.

    Closing the stream ends the text where it is; so does dropping it.

    Args:
        request: the request whose text is streamed.
        chunks: advances the request by a round for each chunk.
    """

    def __init__(self, request: Request, chunks: Generator[Chunk, None, None]) -> None:
        self._request = request
        self._chunks = chunks

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """End the text where it is; one that has ended stays as it is."""
        self._chunks.close()
        if not self._request.finish_reason:
            self._request.end("interrupted")

    @property
    def result(self) -> Generation:
        """The whole text with its metrics, as `Decoder.generate` returns it; "interrupted" where it was closed early.

        Raises:
            UnfinishedTextError: the text has not ended.
        """
        if not self._request.finish_reason:
            written = len(self._request.tokens) - self._request.prompt_length
            raise UnfinishedTextError(
                f"the text has not ended, {written} tokens are written; read the stream to its end, or close it, "
                "before asking for its result"
            )
        return Generation.of(self._request)
