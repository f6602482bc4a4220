"""Record trees and texts of seeded cases, and compare them bit for bit after a change of how rounds run.

    python .ci/recorded_rounds.py record FILE [--cases 4000] [--texts 240]
    python .ci/recorded_rounds.py compare FILE

A case is a toy target, a drafter (a table, lookup or both), a policy, a verifier and a batch of 1, 3 or 16 texts; a
text is one of the embedded target with one of its drafters. Of every round the drafted and the verified tree, the
verdict and the tokens are recorded, and apart from them the bits of all log-probabilities and scores.
"""

import argparse
import hashlib
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import drafttree
from drafttree.core.errors import ConfigError
from drafttree.drafters.lookup import LookupDrafter, SuffixDrafter
from drafttree.drafters.mixed import MixedDrafter
from drafttree.engine.compatibility import incompatibility
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.learned_state import LearnedState
from drafttree.evaluation.pair_trials import COSTLY_DRAFTS, FORMS, LARGE, toy_pair
from drafttree.evaluation.toy_decoder import SteppedEngine
from drafttree.evaluation.toy_models import TOY_COSTS, TabularDrafter, TabularTarget
from drafttree.loading import make_policy
from drafttree.verifiers import VERIFIERS

BATCHES = (1, 3, 16)
KINDS = ("table", "head", "lookup", "suffix", "mixed")
EMBEDDED = ("embedded-draft", "embedded-eagle3", "embedded-medusa", "embedded-hydra", "embedded-mtp", "lookup", "auto")
PROMPTS = ("The old man looked at the sea", "def add(a, b):", "It was the best of times, it was the worst of times, it")
POLICIES = (
    "chain",
    "talon:budget=16,width=4",
    "dynatree",
    "opt-tree:budget=12,depth=4",
    "eagle:budget=12,depth=4,top_k=3",
)


class Rounds:
    """Writes down every round it observes, as two digests: of what it is, and of its numbers (see `RoundObserver`)."""

    def __init__(self) -> None:
        self._digest, self._numbers = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
        self._texts = dict[Any, int]()

    def drafted(self, request: Any, grown: Any, reason: str | None) -> None:
        self._note("drafted", self._text(request), reason is None)
        self._note_tree(grown)

    def settled(self, request: Any, tree: Any, logits: torch.Tensor, verdict: Any, turn: Any) -> None:
        self._note("settled", self._text(request), verdict.path, verdict.bonus, request.tokens, turn.ranks)
        self._note(turn.draft_passes, turn.widths, turn.source)
        self._note_tree(tree)

    def close(self, written: Any) -> str:
        """The digests of all, texts included."""
        self._note([(each.tokens, each.finish_reason, each.drafted) for each in written])
        return f"{self._digest.hexdigest()} {self._numbers.hexdigest()}"

    def _text(self, request: Any) -> int:
        return self._texts.setdefault(request, len(self._texts))

    def _note(self, *what: object) -> None:
        self._digest.update(repr(what).encode())

    def _note_tree(self, tree: Any) -> None:
        tokens, parents = [*map(int, tree.tokens)], [*map(int, tree.parents)]
        self._note(tokens, parents, tree.levels, str(tree.proposal), tree.widths, tree.source, [*tree.draft_probs])
        numbers = [*tree.path_logprobs, *tree.scores]
        for row in tree.draft_probs.values():
            numbers += row.tolist()
        self._numbers.update(repr([float(each).hex() for each in numbers]).encode())


def toy_case(number: int) -> str | None:
    """The digest of a case; None where its parts do not go together."""
    draws = random.Random(number)
    batch, kind = BATCHES[number % 3], draws.choice(KINDS)
    verifier = VERIFIERS[draws.choice([*VERIFIERS])]
    name = draws.choice([*FORMS])
    policy = make_policy(draws.choice([*FORMS[name], *LARGE[name], name]))
    if incompatibility(policy, verifier):
        return None
    pair = toy_pair(draws.randrange(40), draws.choice((3, 5, 7)))
    target = TabularTarget(pair.target)
    table = TabularDrafter(pair.draft, draws.choice((2, 5)), is_head=kind == "head")
    lookup = (SuffixDrafter if kind == "suffix" else LookupDrafter)(pair.target.vocab)
    drafter: Any = {"lookup": lookup, "suffix": lookup, "mixed": MixedDrafter(lookup, table)}.get(kind, table)  # pyright: ignore[reportArgumentType]
    costs = draws.choice((TOY_COSTS, COSTLY_DRAFTS))
    try:
        decoder = Decoder(target, drafter, policy, verifier, learned=LearnedState(costs))
        rounds, options = Rounds(), _options(draws, verifier.__name__, alone=batch == 1)
        prompts = [[draws.randrange(pair.target.vocab) for _ in range(draws.randrange(1, 12))] for _ in range(batch)]
        if batch == 1 and draws.random() < 0.5:
            return rounds.close([decoder.generate(prompts[0], seed=number, observer=rounds, **options)])
        engine = SteppedEngine(decoder, max_batch=max(batch - 1, 1), max_token_gap=math.inf)
        handles = [
            engine.submit(prompt, seed=number + place, observer=rounds, **options)
            for place, prompt in enumerate(prompts)
        ]
        engine.run()
        return rounds.close([handle.result() for handle in handles])
    except ConfigError as error:
        return f"refused: {error}"


def _options(draws: random.Random, verifier: str, *, alone: bool) -> dict[str, Any]:
    """What shapes the texts of a case. In company the seconds that processors take decide who drafts."""
    options: dict[str, Any] = {"max_new_tokens": draws.choice((6, 14)), "temperature": draws.choice((0.7, 1.0))}
    if verifier == "Greedy":
        options["temperature"] = 0.0
    if draws.random() < 0.3:
        penalty = {"repetition_penalty": 1.3} if alone else {"min_p": 0.2}
        options |= draws.choice(({"top_k": 2}, {"top_p": 0.8}, penalty, {"draft_temperature": 0.6}))
    return options


def embedded_texts(count: int) -> Iterator[tuple[str, str]]:
    """Digests of texts of the embedded target, by name."""
    loaded = {name: drafttree.load(drafter=name, dtype="float32").with_costs(TOY_COSTS) for name in EMBEDDED}
    for number in range(count):
        draws = random.Random(f"text {number}")
        name, spec = EMBEDDED[number % len(EMBEDDED)], draws.choice(POLICIES)
        verifier = draws.choice(("greedy", "coupled", "coupled", "rrsw", "traversal", "point-mass"))
        batch, decoder, rounds = BATCHES[number // len(EMBEDDED) % 3], loaded[name], Rounds()
        key = f"text {number}: {name}, {spec}, {verifier}, {batch}"
        options = {"max_new_tokens": 24, "temperature": 0.0 if verifier == "greedy" else 0.8}
        try:
            decoder = decoder.with_policy(spec).with_verifier(verifier)
            engine = SteppedEngine(decoder, max_batch=batch, prefix_tokens=0, max_token_gap=math.inf)
            handles = [
                engine.submit(PROMPTS[place % len(PROMPTS)], seed=number + place, observer=rounds, **options)
                for place in range(batch)
            ]
            engine.run()
            yield key, rounds.close([handle.result() for handle in handles])
        except ConfigError as error:
            yield key, f"refused: {error}"


def record(cases: int, texts: int) -> dict[str, str]:
    """The digests of all cases and texts that are possible, by name."""
    torch.set_num_threads(1)
    found = {f"case {number}": digest for number in range(cases) if (digest := toy_case(number)) is not None}
    return found | dict(embedded_texts(texts))


def main() -> int:
    """Record or compare; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--cases", type=int, default=4000)
    parser.add_argument("--texts", type=int, default=240)
    given = parser.parse_args()
    if given.mode == "record":
        digests = record(given.cases, given.texts)
        given.file.write_text(json.dumps({"cases": given.cases, "texts": given.texts, "digests": digests}, indent=1))
        print(
            f"{len(digests)} recorded, {sum(each.startswith('refused') for each in digests.values())} of them refused"
        )
        return 0
    kept = json.loads(given.file.read_text())
    found = record(kept["cases"], kept["texts"])
    digests = kept["digests"]
    others = [name for name, digest in digests.items() if found.get(name, "").split()[:1] != digest.split()[:1]]
    rounded = sum(found.get(name) != digest for name, digest in digests.items()) - len(others)
    print(f"{len(digests) - len(others)} of {len(digests)} are the same, {rounded} of them in other bits of numbers")
    for name in others[:20]:
        print(f"  {name}: {digests[name]} before, {found.get(name)} now")
    return int(bool(others) or found.keys() != digests.keys())


if __name__ == "__main__":
    sys.exit(main())
