"""Makes the decoders of methods from a decoder with their target."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from transformers import PreTrainedModel

from drafttree.core.errors import ConfigError
from drafttree.drafters import Drafter
from drafttree.engine.decoder import Decoder
from drafttree.loading import DrafterSource, find_drafter
from drafttree.measure.method import Method
from drafttree.measure.reference import transformers_model


def make_decoders(
    decoder: Decoder, methods: Iterable[Method], drafters: Mapping[str, DrafterSource] = MappingProxyType({})
) -> dict[str, Decoder]:
    """Make a decoder per method, by specification; a drafter that several methods name is loaded once.

    Args:
        decoder: the decoder, for its target and tokenizer, and for its verifier if a method names none.
        methods: the methods.
        drafters: sources of drafters, by the names in methods; any other name is a source itself.

    Raises:
        ConfigError: a drafter is unknown or "none", or policy and verifier are not lossless together.
        ModelError: a drafter cannot be loaded or does not fit the target.
        TokenizerMismatch: If a language model that drafts has less than a third of the target's tokens.
    """
    all_methods = list(methods)
    names = dict.fromkeys(method.drafter for method in all_methods if method.drafter)
    loaded_drafters = {name: _find_drafter(decoder, drafters.get(name, name)) for name in names}
    return {method.spec: _decoder(decoder, method, loaded_drafters) for method in all_methods}


def _decoder(decoder: Decoder, method: Method, drafters: Mapping[str, Drafter]) -> Decoder:
    if method.drafter is None:
        return decoder.plain()
    free_decoder = decoder.with_drafter(drafters[method.drafter]).with_verifier(None)
    return free_decoder.with_policy(method.policy).with_verifier(method.verifier or decoder.verifier)


def _find_drafter(decoder: Decoder, source: DrafterSource) -> Drafter:
    """Load the drafter of a source; a source that is a drafter is returned as it is."""
    if not isinstance(source, str | Path | type | PreTrainedModel):
        return source
    if drafter := find_drafter(source, transformers_model(decoder), decoder.tokenizer):
        return drafter
    raise ConfigError(f"{source!r} is not a drafter to measure; leave it out: plain decoding is always included")
