"""The page: one file that needs nothing else, with what it must know of the server."""

import re
from base64 import b64encode
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256

from drafttree.engine.compatibility import is_text_of_seed, keeps_text
from drafttree.engine.decoder import Decoder
from drafttree.interfaces.page_parts.assembly import assemble
from drafttree.interfaces.page_parts.round_packing import WORDS
from drafttree.interfaces.server.playground.drafting_engine import drafting_policy
from drafttree.loading import policy_spec
from drafttree.loading.names import PartNames


@dataclass(frozen=True)
class Facts:
    """What the page knows of the server.

    Attributes:
        model: the name it is served under.
        drafter: the name of the drafter, "none" without one.
        policy: the specification of the policy that drafts in every round.
        served_policy: that of the server's own texts.
        verifier: the name of the verifier, or "auto".
        precision: the dtype of the target.
        lossless: whether texts have the law of the target's own.
        fidelity: whether texts are lossless in words, and if not why.
        same_law: whether texts have one law with drafts and without.
        context: tokens of prompt and text at most, None for no limit.
        chats: whether there is a chat template.
        repeats: whether a text is the same without drafts, in reduced precision up to ties.
        ties: whether the precision is such that rounding may decide between the two best tokens.
        wants_key: whether requests need a key.
    """

    model: str
    drafter: str
    policy: str
    served_policy: str
    verifier: str
    precision: str
    lossless: bool
    fidelity: str
    same_law: bool
    context: int | None
    chats: bool
    repeats: bool
    ties: bool
    wants_key: bool

    @classmethod
    def of(cls, decoder: Decoder, model: str, *, wants_key: bool) -> "Facts":
        """The facts of a decoder that is served under a name."""
        names = PartNames.of(decoder)
        return cls(
            model=model,
            drafter=names.drafter,
            policy=policy_spec(drafting_policy(decoder)),
            served_policy=names.policy,
            verifier=names.verifier,
            precision=names.precision,
            lossless=decoder.fidelity.lossless,
            fidelity=decoder.fidelity.words,
            same_law=decoder.verifier is None or decoder.verifier.lossless,
            context=decoder.target.context,
            chats=bool(getattr(decoder.tokenizer, "chat_template", None)),
            repeats=decoder.verifier is None or is_text_of_seed(decoder.verifier),
            ties=not keeps_text(decoder.target),
            wants_key=wants_key,
        )


@dataclass(frozen=True)
class Page:
    """The page and the policy under which a browser shows it: its own style and scripts, and this server alone."""

    html: str
    security_policy: str


@lru_cache(maxsize=1)
def make_page(facts: Facts) -> Page:
    """The page for a server."""
    package = "drafttree.interfaces.server.playground"
    html = assemble(package, "playground.css", "playground.js", asdict(facts) | WORDS, facts=facts)
    style, script = (" ".join(map(_hashed, re.findall(pattern, html, re.DOTALL))) for pattern in (STYLE, SCRIPT))
    rules = f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:"
    return Page(html, f"{rules}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


STYLE, SCRIPT = "<style>(.*?)</style>", "<script>(.*?)</script>"


def _hashed(part: str) -> str:
    return f"'sha256-{b64encode(sha256(part.encode()).digest()).decode()}'"
