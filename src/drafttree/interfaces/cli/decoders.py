"""Makes decoders and prompts from the options of commands. Imports torch, so commands import it only when they run."""

import sys
from pathlib import Path
from typing import Any

from huggingface_hub.utils import enable_progress_bars
from transformers.utils.logging import disable_progress_bar

from drafttree.core.errors import ConfigError, ModelError
from drafttree.engine.decoder import Decoder
from drafttree.loading import TunedPolicy, choose_drafter, find_folder, find_gguf, local_folder, zoo
from drafttree.loading.drafters import OWN_LAYERS, Choice
from drafttree.loading.load import load
from drafttree.measure.inflation import load_inflated
from drafttree.measure.prompt_encoding import encode_prompts
from drafttree.measure.prompt_form import AS_TEXT, PromptForm
from drafttree.measure.prompt_sets import shipped_prompts
from drafttree.measure.prompts import Example, read_examples
from drafttree.policies import Chain
from drafttree.verifiers import Verifier


def load_named(target: str, drafter: str, *arguments: Any, **options: Any) -> Decoder:
    """Load a decoder. For "auto", print the chosen drafter on standard error, except for the embedded target.

    Args:
        target: as for `drafttree.load`.
        drafter: as for `drafttree.load`.
        *arguments: policy and verifier, as for `drafttree.load`.
        **options: further arguments of `drafttree.load`.
    """
    hide_bars()
    if sys.stderr.isatty() and target not in zoo.NAMES and not Path(target).exists():
        print(f"looking for {target} on the Hugging Face hub ...", file=sys.stderr)
    policy = next((argument for argument in arguments if isinstance(argument, TunedPolicy)), None)
    if policy and drafter == "auto":
        note = f", draft temperature {policy.draft_temperature:g}" if policy.draft_temperature != 1 else ""
        print(f"drafter: {policy.drafter.name if policy.drafter else 'none'}{note} ({policy.path})", file=sys.stderr)
    if drafter != "auto" or policy:
        return load(target, drafter, *arguments, **options)
    if "/" in target and not find_gguf(target) and local_folder(target) is None:
        find_folder(target)  # its files also decide which drafter is chosen
    choice = choose_drafter(target)
    try:
        decoder = load(target, choice.name, *arguments, **options)
    except ModelError as error:
        if choice.name != OWN_LAYERS:
            raise
        choice = Choice("lookup", str(error))
        decoder = load(target, choice.name, *arguments, **options)
    if target != "embedded":
        print(f"drafter: {choice.name} ({choice.reason}); name another with --drafter", file=sys.stderr)
    return decoder


def load_speculative(
    target: str,
    drafter: str,
    dtype: str,
    device: str,
    shape: str | None = None,
    *,
    verifier: type[Verifier] | None = None,
    exact_text: bool = False,
    **quantize_options: str | None,
) -> Decoder:
    """Load a decoder that has a drafter.

    Args:
        target: as for `drafttree.load`.
        drafter: as for `drafttree.load`.
        dtype: as for `drafttree.load`.
        device: as for `drafttree.load`.
        shape: the shape to inflate the target to; None for none.
        verifier: the verifier, with the policy `chain`; None for the default verifier and policy.
        exact_text: as for `drafttree.load`.
        **quantize_options: `quantize` and `quantize_drafter`, as for `drafttree.load`.

    Raises:
        ConfigError: there is no drafter for the target.
    """
    hide_bars()
    decoder = load_inflated(target, drafter, shape, dtype, device, **quantize_options) if shape else None
    decoder = decoder or load_named(
        target, drafter, dtype=dtype, device=device, exact_text=exact_text, **quantize_options
    )
    if decoder.drafter is None:
        raise ConfigError(f"there is no drafter for {target!r}; name one with --drafter")
    return judged_by(decoder, verifier)


def judged_by(decoder: Decoder, verifier: type[Verifier] | None) -> Decoder:
    """The decoder with a verifier, and the policy `chain`, which works with every verifier; unchanged for None."""
    return decoder.with_policy(Chain()).with_verifier(verifier) if verifier else decoder


def read_token_ids(
    decoder: Decoder, paths: list[Path] | None, limit: int | None, length: int, form: PromptForm = AS_TEXT
) -> list[list[int]]:
    """Token ids of the prompts of some files, or of the shipped prompts without files.

    Args:
        decoder: for its tokenizer and context.
        paths: prompt files.
        limit: the most prompts; None for all.
        length: new tokens that must fit behind each prompt.
        form: which prompts are taken, and how they are encoded.
    """
    examples = read_examples(paths, limit, **form.selection) if paths else shipped_examples(limit, form)
    return encode_prompts(decoder, examples, form, length)


def shipped_examples(limit: int | None, form: PromptForm) -> list[Example]:
    """The shipped prompts.

    Raises:
        ConfigError: `form` asks for a category, which they do not have.
    """
    if form.category:
        raise ConfigError(f"--category {form.category!r} chooses from prompt files; name one with --prompts")
    return [Example(text) for text in shipped_prompts()[:limit]]


def hide_bars() -> None:
    """Hide the progress bars of transformers; those of downloads show on a terminal."""
    disable_progress_bar()  # of transformers, and of the hub
    if sys.stderr.isatty():
        enable_progress_bars()
