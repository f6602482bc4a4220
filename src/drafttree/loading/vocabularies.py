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
    found = VocabularyMap(tokenizer, draft_tokenizer, target.vocab_size, logits_width(draft), target.device)
    common = f"{len(found.twins):,} of the target's {found.tokens:,} tokens"
    if found.share < LEAST_SHARE:
        raise TokenizerMismatch(
            f"{difference}; the drafter has {common}, less than a third; use a drafter of the target's model family, "
            "or 'lookup'"
        )
    logger.warning("the drafter has another tokenizer: it can draft %s (%.0f %%)", common, 100 * found.share)
    return found


def _difference(target: PreTrainedTokenizerBase | None, draft: PreTrainedTokenizerBase | None) -> str | None:
    """The first id that means different tokens."""
    if target is None or draft is None:
        return None
    ours = {index: token for token, index in target.get_vocab().items()}
    theirs = {index: token for token, index in draft.get_vocab().items()}
    index = next((each for each in sorted(ours.keys() & theirs.keys()) if ours[each] != theirs[each]), None)
    if index is None:
        return None
    return (
        f"target and drafter have different tokenizers: token {index} is {ours[index]!r} for the target and "
        f"{theirs[index]!r} for the drafter"
    )
