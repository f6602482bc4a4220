"""The page of the playground: a single file, with facts about the server."""

import re
from base64 import b64encode
from functools import lru_cache
from hashlib import sha256
from typing import Any

from drafttree.engine.compatibility import is_text_of_seed, keeps_text
from drafttree.engine.decoder import Decoder
from drafttree.interfaces.page_parts.assembly import assemble
from drafttree.interfaces.page_parts.round_packing import WORDS
from drafttree.interfaces.server.drafting_engine import drafting_policy
from drafttree.loading import policy_spec
from drafttree.loading.names import PartNames


def facts_of(decoder: Decoder, model: str, *, wants_key: bool, reads_images: bool) -> dict[str, Any]:
    """The facts that the page needs.

    Args:
        decoder: the served decoder.
        model: the model's name.
        wants_key: whether requests need a key.
        reads_images: whether requests may have images.
    """
    names = PartNames.of(decoder)
    verifier = decoder.verifier
    fidelity = decoder.fidelity
    return {
        "model": model,
        "drafter": names.drafter,
        "policy": policy_spec(drafting_policy(decoder)),  # the page's policy, which drafts in every round
        "served_policy": names.policy,
        "verifier": names.verifier,
        "precision": names.precision,
        "lossless": fidelity.lossless,
        "fidelity": fidelity.words,
        "same_law": verifier is None or verifier.lossless,  # with and without drafts, even of a lossy target
        "context": decoder.target.context,
        "chats": bool(getattr(decoder.tokenizer, "chat_template", None)),
        "no_images": _why_no_images(decoder, model, reads_images=reads_images),
        "repeats": verifier is None or is_text_of_seed(verifier),  # whether the text is the same without drafts
        "ties": not keeps_text(decoder.target),  # whether rounding may decide between the two best tokens
        "wants_key": wants_key,
    }


@lru_cache(maxsize=1)
def make_page(**facts: Any) -> tuple[str, str]:
    """The page and its content security policy, which allows only the page's own style and scripts, and this server."""
    package = "drafttree.interfaces.server.playground"
    html = assemble(package, "playground.css", "playground.js", facts | WORDS, facts=facts)
    style = _hashes(html, "style")
    script = _hashes(html, "script")
    rules = f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:"
    return html, f"{rules}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def _why_no_images(decoder: Decoder, model: str, *, reads_images: bool) -> str | None:
    """Why the page takes no images, as a sentence; None if it does."""
    if getattr(decoder.target, "image_token", None) is None:
        return f"{model} reads no images."
    if not reads_images:
        return f"The processor for the images of {model} could not be loaded; the server's log says why."
    if not getattr(decoder.tokenizer, "chat_template", None):
        return f"{model} has no chat template, and images need one."
    return None


def _hashes(html: str, tag: str) -> str:
    """The sources in a content security policy that allow the page's elements with a tag."""
    contents = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'" for content in contents)
