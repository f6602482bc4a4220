"""Writes one prompt with several decoders at once, as a fair race on a single machine."""

from collections.abc import Iterator, Mapping
from typing import Any

from drafttree.engine.decoder import Decoder, Prompt
from drafttree.engine.generation import Chunk, Generation


class SideBySide:
    """Writes texts of one prompt alternately: the next round is always of the text with the least time so far.

    So each decoder has the machine to itself while it computes, and all texts have had about the same time at any
    moment.

    Args:
        decoders: the decoders, by name.
        prompt: the prompt.
        **options: as for `Decoder.generate`; all texts get the same.

    Raises:
        ConfigError, InputError, ContextError: as `Decoder.generate` does.
    """

    def __init__(self, decoders: Mapping[str, Decoder], prompt: Prompt, **options: Any) -> None:
        self._requests = {name: decoder.new_request(prompt, **options) for name, decoder in decoders.items()}
        self._streams = {name: decoders[name].stream_request(self._requests[name]) for name in decoders}

    @property
    def seconds(self) -> dict[str, float]:
        """By name, the time taken so far."""
        return {name: request.metrics.seconds for name, request in self._requests.items()}

    def __iter__(self) -> Iterator[tuple[str, Chunk]]:
        """Yield the name of a decoder and the chunk that its next round added, until all texts have ended."""
        while self._streams:
            name = min(self._streams, key=self.seconds.__getitem__)
            if chunk := next(self._streams[name], None):
                yield name, chunk
            else:
                del self._streams[name]

    def texts(self) -> dict[str, Generation]:
        """The texts so far, by name."""
        return {name: request.generation() for name, request in self._requests.items()}
