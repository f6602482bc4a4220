"""Writes a text by the decoder's own steps, and records its trees."""

from collections.abc import Iterator
from typing import Unpack

import torch
from torch import Tensor

from drafttree.core.tree import DraftTree, Proposal, Verdict
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.engine.generation_options import GenerationOptions
from drafttree.engine.metrics import TextRound
from drafttree.engine.request import Request, RequestContext, RoundObserver
from drafttree.evaluation.trace.growth import GrowthRecord
from drafttree.evaluation.trace.rounds import TokenTexts, read_round
from drafttree.evaluation.trace.trace import Trace, TracedRound
from drafttree.loading import VERIFIER_CLASSES
from drafttree.loading.names import PartNames
from drafttree.text.prompt import Prompt


class Tracer:
    """Writes and traces one text.

    Args:
        decoder: the decoder that writes the text; it is not changed.
        prompt: one prompt, as `Decoder.generate` takes it.
        **options: options of `Decoder.generate`.

    Attributes:
        request: the request of the text.
        rounds: rounds so far.

    Raises:
        DraftTreeError: as for `Decoder.generate`.
    """

    def __init__(self, decoder: Decoder, prompt: Prompt, **options: Unpack[GenerationOptions]) -> None:
        self._recorder = _RoundRecorder()
        context = RequestContext(observer=self._recorder, growth_observer=self._recorder)
        self.request = decoder.new_request(prompt, context, **options)
        self.rounds: list[TracedRound] = []
        self._decoder = decoder
        self._texts = TokenTexts(decoder.tokenizer)
        self._setting = _setting(decoder, self.request)

    def run(self) -> Iterator[TracedRound]:
        """Write the text and yield every round after its commit; Ctrl-C in a round ends the text."""
        decoder = self._decoder
        request = self.request
        with decoder.prefixes.storing(request), decoder.learned.learning(request):
            while not request.text.finish_reason:
                previous_token = request.tokens[-2] if len(request.tokens) > 1 else None
                self._recorder.begin_round()
                try:
                    decoder.step(request)
                except KeyboardInterrupt:
                    request.end("interrupted")
                    return
                traced_round = self._recorder.traced(request)
                self.rounds.append(self._texts.fill(traced_round, previous_token))
                yield traced_round

    @property
    def prompt(self) -> str:
        """The prompt as text, with special tokens shown by name."""
        tokens = self.request.tokens[: len(self.request.task.prompt)]
        if self._decoder.tokenizer is None:
            return "".join(self._texts.piece(None, token) for token in tokens).strip()
        return self._decoder.tokenizer.decode(tokens, skip_special_tokens=False)

    def trace(self) -> Trace:
        """The trace of the text so far."""
        generation = self.request.generation()
        return Trace(
            prompt=self.prompt,
            pieces=self._pieces(generation),
            setting=self._setting,
            sampled=self.request.task.verifier.proposal is not Proposal.TOP_K,
            finish_reason=generation.finish_reason,
            rounds=list(self.rounds),
            metrics=generation.metrics.summary(),
        )

    def _pieces(self, generation: Generation) -> list[str]:
        """The text in one piece per token: the characters that the token completed."""
        if self._decoder.tokenizer is None:
            return [self._texts.piece(None, token) for token in generation.tokens]
        pieces = [""] * len(generation.tokens)
        for character, token in zip(generation.text, self.request.text.detokenizer.origins, strict=False):
            pieces[token] += character
        return pieces


class _RoundRecorder(GrowthRecord, RoundObserver):
    """Records the latest round. It is read after the round, so that its time does not count."""

    def drafted(self, request: Request, grown: DraftTree, reason: str | None) -> None:
        """Do nothing: the growth observer has seen more of the tree."""

    def settled(
        self, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, text_round: TextRound
    ) -> None:
        self._settled = tree, logits, verdict, text_round

    @torch.inference_mode()
    def traced(self, request: Request) -> TracedRound:
        """The data of the recorded round, without the texts of its tokens."""
        tree, logits, verdict, _ = self._settled
        sampling = request.task.verifier.sampling
        grown = self.read(tree, verdict, sampling, logits.shape[-1], reranks=request.task.policy.reranks)
        return read_round(grown, request, *self._settled)


def _setting(decoder: Decoder, request: Request) -> dict[str, str]:
    """The setting of a text, as `Trace.setting`."""
    sampling = request.task.verifier.sampling
    names = PartNames.of(decoder)._replace(verifier=VERIFIER_CLASSES.name_of(type(request.task.verifier)))
    return {
        **names._asdict(),
        "temperature": f"{sampling.temperature:g}",
        **({} if sampling.greedy else {"seed": str(sampling.seed)}),
        "text": request.task.fidelity.words,
    }


def trace_text(decoder: Decoder, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Trace:
    """Write a text and trace it.

    Args:
        decoder: the decoder that writes the text.
        prompt: one prompt, as `Decoder.generate` takes it.
        **options: options of `Decoder.generate`.

    Returns:
        The trace, whose text is that of `Decoder.generate`.

    Raises:
        DraftTreeError: as for `Decoder.generate`.
    """
    tracer = Tracer(decoder, prompt, **options)
    for _ in tracer.run():
        pass
    return tracer.trace()
