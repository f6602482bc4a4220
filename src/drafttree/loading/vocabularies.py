"""Whether a draft model's tokenizer is the target's, and what the two have in common where it is not."""

import logging

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.errors import TokenizerMismatch
from drafttree.drafters import VocabularyMap
from drafttree.models import TargetModel
from drafttree.models.module.module_checks import logits_width

logger = logging.getLogger("drafttree")
LEAST_SHARE = 1 / 3
"""The share of the target's tokens that a draft model must have: with fewer, most of what it could draft is lost."""


def check_tokenizers(target: PreTrainedTokenizerBase | None, draft: PreTrainedTokenizerBase | None) -> None:
    """Compare two vocabularies where both have tokens; ids only one of them has are padding.

    Raises:
        TokenizerMismatch: some id means different tokens; the message shows the first.
    """
    if difference := _difference(target, draft):
        raise TokenizerMismatch(f"{difference}; use a drafter of the target's model family")


def map_vocabularies(
    target: TargetModel,
    tokenizer: PreTrainedTokenizerBase | None,
    draft: PreTrainedModel,
    draft_tokenizer: PreTrainedTokenizerBase | None,
) -> VocabularyMap | None:
    """What a draft model's tokens are among the target's; None where the two have the same.

    Raises:
        TokenizerMismatch: less than a third of the target's tokens are in common.
    """
    difference = _difference(tokenizer, draft_tokenizer)
    if tokenizer is None or draft_tokenizer is None or difference is None:
        return None
    vocabulary_map = VocabularyMap(tokenizer, draft_tokenizer, target.vocab_size, logits_width(draft), target.device)
    overlap = f"{len(vocabulary_map.twins):,} of the target's {vocabulary_map.tokens:,} tokens"
    if vocabulary_map.share < LEAST_SHARE:
        raise TokenizerMismatch(
            f"{difference}; the drafter has {overlap}, less than a third; use a drafter of the target's model family, "
            "or 'lookup'"
        )
    logger.warning("the drafter has another tokenizer: it can draft %s (%.0f %%)", overlap, 100 * vocabulary_map.share)
    return vocabulary_map


def _difference(target: PreTrainedTokenizerBase | None, draft: PreTrainedTokenizerBase | None) -> str | None:
    """The first id that means different tokens."""
    if target is None or draft is None:
        return None
    target_tokens = {token_id: token for token, token_id in target.get_vocab().items()}
    draft_tokens = {token_id: token for token, token_id in draft.get_vocab().items()}
    mismatch_id = next(
        (
            token_id
            for token_id in sorted(target_tokens.keys() & draft_tokens.keys())
            if target_tokens[token_id] != draft_tokens[token_id]
        ),
        None,
    )
    if mismatch_id is None:
        return None
    return (
        f"target and drafter have different tokenizers: token {mismatch_id} is {target_tokens[mismatch_id]!r} for the "
        f"target and {draft_tokens[mismatch_id]!r} for the drafter"
    )
