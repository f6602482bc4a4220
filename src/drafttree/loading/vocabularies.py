"""Compares a draft model's tokenizer with the target's, and maps the tokens that both have."""

import logging

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from drafttree.core.errors import TokenizerMismatch
from drafttree.drafters import VocabularyMap
from drafttree.models import TargetModel
from drafttree.models.module.module_checks import logits_width

logger = logging.getLogger("drafttree")
LEAST_SHARE = 1 / 3
"""The least share of the target's tokens that a draft model must have; with fewer, most drafts would be lost."""


def check_tokenizers(target: PreTrainedTokenizerBase | None, draft: PreTrainedTokenizerBase | None) -> None:
    """Refuse a draft tokenizer in which an id means another token; ids that only one of the two has are padding.

    Raises:
        TokenizerMismatch: an id means different tokens; the message shows the first.
    """
    if difference := _difference(target, draft):
        raise TokenizerMismatch(f"{difference}; use a drafter of the target's model family")


def map_vocabularies(
    target: TargetModel,
    tokenizer: PreTrainedTokenizerBase | None,
    draft: PreTrainedModel,
    draft_tokenizer: PreTrainedTokenizerBase | None,
) -> VocabularyMap | None:
    """The map from a draft model's tokens to the target's; None if they are the same, or a tokenizer is missing.

    Raises:
        TokenizerMismatch: the draft model has less than a third of the target's tokens.
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
    """A phrase for the first id that means different tokens; None if there is none, or a tokenizer is missing."""
    if target is None or draft is None:
        return None
    target_tokens = {token_id: token for token, token_id in target.get_vocab().items()}
    draft_tokens = {token_id: token for token, token_id in draft.get_vocab().items()}
    for token_id in sorted(target_tokens.keys() & draft_tokens.keys()):
        target_token = target_tokens[token_id]
        draft_token = draft_tokens[token_id]
        if target_token != draft_token:
            return (
                f"target and drafter have different tokenizers: token {token_id} is {target_token!r} for the target "
                f"and {draft_token!r} for the drafter"
            )
    return None
