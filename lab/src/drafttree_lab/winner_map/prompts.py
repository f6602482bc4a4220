"""The prompts of the map: some of every set, those first after which the target's text does not end in a loop."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from random import Random

from drafttree_lab.replay.paper import paper_names, read_paper
from drafttree_lab.replay.prompt_texts import PromptTexts, read_prompt_texts

MOST_TOKENS = 256
"""Tokens of a prompt at most; longer ones are cut, so that books are texts among others."""
Ids = Sequence[int]


def read_map_prompts(limit: int) -> PromptTexts:
    """The prompts of all sets that ship, each file once: as many candidates of every set as are wanted in all.

    Args:
        limit: prompts wanted in all.
    """
    found = read_prompt_texts(paper_names(), None, limit)
    files = {place: read_paper(place[0]).sets[place[1]] for place in found.texts}
    whole = {each.file for each in files.values() if not each.category}
    own: dict[tuple[str, str | None], tuple[str, str]] = {}
    for place, each in files.items():
        if not (each.category and each.file in whole):
            own.setdefault((each.file, each.category), place)
    return PromptTexts({place: found.texts[place] for place in own.values()}, found.missing, found.notes)


def choose_prompts(
    sets: Mapping[tuple[str, str], Sequence[Ids]], limit: int, seed: int, is_looping: Callable[[Ids], bool]
) -> list[list[int]]:
    """Token ids of the prompts of the map, from every set in turn.

    Args:
        sets: token ids of the candidates by paper and set.
        limit: prompts wanted.
        seed: seed of the order in which a set's candidates are tried.
        is_looping: whether the target's text after a prompt ends in a loop. It is asked of as few as will do.
    """
    random = Random(seed)
    shuffled = (random.sample([*each], len(each)) for each in sets.values())
    tried = (list(ids[:MOST_TOKENS]) for ids in chain.from_iterable(zip_longest(*shuffled)) if ids)
    chosen, looping = list[list[int]](), list[list[int]]()
    for ids in tried:
        if ids in chosen or ids in looping:
            continue
        (looping if is_looping(ids) else chosen).append(ids)
        if len(chosen) == limit:
            break
    return (chosen + looping)[:limit]
