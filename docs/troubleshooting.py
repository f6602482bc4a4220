"""Write troubleshooting.md: messages of drafttree, each read from the source, and what to do about them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "drafttree"
DOCUMENT = ROOT / "docs" / "troubleshooting.md"
GAP = "…"
"""Stands in a message for what differs from case to case."""
CONVERSION = re.compile(r"%[.\d]*[sdfr]")


class Entry(NamedTuple):
    """A message and what to say of it.

    Attributes:
        file: the file below `SOURCES` that has the message.
        beginning: how the message begins, with `GAP` for each value in it.
        meaning: what has happened.
        advice: what to do.
    """

    file: str
    beginning: str
    meaning: str
    advice: str


INTRODUCTION = f"""# Troubleshooting

<!-- `python docs/troubleshooting.py` makes this page. -->

Search this page for a part of your message. `{GAP}` stands for names and numbers. Commands print errors after
`drafttree: error:` and end with code 2. In Python they are subclasses of `drafttree.errors.DraftTreeError`
([Errors](api.md#errors)). Warnings come from the logger `drafttree`. If a text is correct but slow, see
[Why is it slower?](slower.md).
"""
"""The beginning of the page."""
SECTIONS = {
    "Loading a model": [
        Entry(
            "loading/folders.py",
            "model folder",
            "The name looks like a path, and there is no such folder.",
            "Check the path. A name on the hub has the form `owner/name`.",
        ),
        Entry(
            "loading/folders.py",
            "… is not on this machine, and",
            "The hub does not answer, and the model was never downloaded.",
            "Check the connection, or copy the model's folder to this machine and give its path.",
        ),
        Entry(
            "drafters/formats/hub.py",
            "cannot download … (",
            "The hub answers, but does not give the model.",
            "Check the spelling. For a gated model, accept its terms on the hub and run `hf auth login`.",
        ),
        Entry(
            "loading/pretrained.py",
            "cannot load model",
            "transformers cannot read the folder. The rest of the message is its reason, such as missing weights.",
            "For a new architecture, upgrade transformers. A model with its own code must be loaded by transformers "
            "and passed as an object.",
        ),
        Entry(
            "loading/pretrained.py",
            "the weights of … are incomplete",
            "Tensors that the model needs are not in its files.",
            "Copy or download the folder again.",
        ),
        Entry(
            "loading/pretrained.py",
            "the weights of … do not fit its config.json",
            "A tensor has another shape than `config.json` says.",
            "Take both from the same version of the model.",
        ),
        Entry(
            "loading/memory.py",
            "the weights of … take",
            "The weights are larger than the free memory.",
            "Load a quantised model, or [round it](own-models.md#four-bits).",
        ),
        Entry(
            "loading/pretrained.py",
            "… is not a language model",
            "The architecture is not a decoder-only language model.",
            "See the [tested architectures](models.md).",
        ),
        Entry(
            "models/module/module_backend.py",
            "… cannot be verified in a tree",
            "A layer of the model cannot score several continuations in one pass.",
            "Take another model. The message names the kind of layer.",
        ),
        Entry(
            "loading/pretrained.py",
            "… is a drafter (…), not a model",
            "A trained head was given as target.",
            "Give it as drafter: `drafttree generate --target MODEL --drafter HEAD`.",
        ),
        Entry(
            "loading/pretrained.py",
            "cannot load the tokenizer of",
            "There is no usable tokenizer beside the model.",
            "Save one there, or pass `tokenizer=` to `drafttree.load`.",
        ),
        Entry(
            "loading/placement.py",
            "device … is not available",
            "This PyTorch cannot use the device.",
            "Use `auto`, or [install](install.md) a PyTorch for your GPU.",
        ),
        Entry(
            "core/requirements.py",
            "… needs …, which is not installed",
            "A feature needs an optional package.",
            "Run the command in the message. See [extras](install.md#extras).",
        ),
    ],
    "Drafting": [
        Entry(
            "loading/vocabularies.py",
            "…; the drafter has …, less than a third",
            "The tokenizers of target and drafter have too little in common.",
            "See [drafters with another tokenizer](own-models.md#draft-models-with-another-tokenizer).",
        ),
        Entry(
            "loading/vocabularies.py",
            "the drafter has another tokenizer",
            "The drafter can propose only the tokens that both models have. The text is not affected.",
            "If drafting is slow, take a drafter of the same family.",
        ),
        Entry(
            "loading/drafters.py",
            "no model is known to draft for",
            "`auto` found no drafter for this target, so it uses `lookup`.",
            "[Choose a drafter](choosing.md), or train a [head](train.md).",
        ),
        Entry(
            "loading/model_drafters.py",
            "the drafter has … million parameters",
            "A draft pass costs as much as a target pass.",
            "Name a smaller drafter.",
        ),
        Entry(
            "engine/compatibility.py",
            "… with … is not lossless",
            "This policy and this verifier do not give the target's distribution together.",
            "Use the pair that the message names, or leave out the verifier.",
        ),
        Entry(
            "engine/drafting/text_drafting.py",
            "the drafter … may be misread",
            "The head is far less often right than its own probabilities say. The text is not affected.",
            "Run the command in the message. Check which target the head was trained for.",
        ),
        Entry(
            "engine/drafting/text_drafting.py",
            "from token … of a text on",
            "Drafts were accepted at first, and hardly any are accepted now.",
            "Use another drafter for long texts or this language. See [Why is it slower?](slower.md).",
        ),
        Entry(
            "engine/drafting/text_drafting.py",
            "a text has reached the drafter's context",
            "The drafter cannot read any further. The rest of the text is decoded plainly.",
            "Nothing, or use `lookup` for long texts.",
        ),
        Entry(
            "engine/drafting/tree_drafter.py",
            "the drafter failed, so texts go on without drafts",
            "The drafter raised an error in an engine or a server. Its texts are still correct.",
            "Report the error in the message, or fix your own drafter.",
        ),
        Entry(
            "engine/drafting/text_drafting.py",
            "memory ran out in the drafter",
            "There was no memory left for the drafter's passes.",
            "Use shorter texts, fewer at once, or a smaller drafter.",
        ),
    ],
    "Native kernels and GPUs": [
        Entry(
            "models/native/kernels.py",
            "drafttree-native does not load",
            "The package is installed, but was built for another Python, PyTorch or processor.",
            "[Build it again](install.md#faster-on-a-cpu) in this environment.",
        ),
        Entry(
            "models/native/kernels.py",
            "passes run on torch",
            "drafttree and drafttree-native have versions that do not fit.",
            "[Install both again](install.md#faster-on-a-cpu) from the same version.",
        ),
        Entry(
            "models/native/kernels.py",
            "drafttree-native is not installed",
            "`repr(decoder.target)` says why passes run on torch.",
            "[Install it](install.md#faster-on-a-cpu) for faster passes on a CPU.",
        ),
        Entry(
            "loading/target_options.py",
            "…=… needs drafttree-native on a CPU",
            "On a CPU, only drafttree-native multiplies by rounded weights.",
            "Install it, or leave the option out.",
        ),
        Entry(
            "models/recorded/cuda_graphs.py",
            "passes run without CUDA graphs",
            "A pass could not be recorded on the GPU.",
            "The text is correct. The rest of the message says which operation prevents it.",
        ),
    ],
    "Texts, options and grammars": [
        Entry(
            "core/errors.py",
            "unknown",
            "There is no policy, option or parameter of this name.",
            "Take the name that is suggested. `drafttree policies` lists the policies with their parameters.",
        ),
        Entry(
            "constraints/refusals.py",
            "tree drafting does not support",
            "The option cannot be combined with draft trees.",
            "See [what to do instead](options.md#refused-by-name).",
        ),
        Entry(
            "text/prompt.py",
            "the prompt of … tokens leaves no room",
            "The prompt alone fills the model's context.",
            "Shorten the prompt.",
        ),
        Entry(
            "text/prompt.py",
            "the prompt of … tokens and max_new_tokens=",
            "Prompt and text together exceed the model's context.",
            "Lower `max_new_tokens`, or shorten the prompt.",
        ),
        Entry(
            "text/prompt.py",
            "a text prompt needs a tokenizer",
            "The decoder has no tokenizer.",
            "Pass `tokenizer=` to `drafttree.load`, or give token ids.",
        ),
        Entry(
            "text/chat.py",
            "the target's tokenizer has no chat template",
            "Messages need a chat template. Base models often have none.",
            "Take an instruction-tuned model, or give text. `drafttree chat` takes `--chat-template FILE`.",
        ),
        Entry(
            "constraints/processors.py",
            "leaves no token possible",
            "A logits processor or a grammar forbids every next token.",
            "Loosen the one that the message names.",
        ),
        Entry(
            "constraints/json_schema.py",
            "invalid JSON schema: … at … cannot be enforced",
            "A keyword of the schema would have no effect.",
            "Remove it. See [JSON schemas](structured-output.md#json-schemas).",
        ),
        Entry(
            "verifiers/base.py",
            "the target's logits are not finite",
            "The model computes NaN.",
            "Load it with `dtype='float32'` or `'bfloat16'`. If that does not help, download it again.",
        ),
    ],
    "The server": [
        Entry(
            "interfaces/server/lifecycle.py",
            "cannot listen at",
            "Another program uses the port, or the address is not one of this machine.",
            "Give another `--port`, or `--port 0` for a free one.",
        ),
        Entry(
            "interfaces/server/sampling.py",
            "the prompt of … tokens",
            "Prompt and text exceed the context. The status is 400, the code `context_length_exceeded`.",
            "Shorten the conversation, or lower `max_tokens`. `--max-model-len` may have lowered the limit.",
        ),
        Entry(
            "interfaces/server/access.py",
            "the request has no API key",
            "The server was started with keys (status 401).",
            "Give the client one of them. See [security](server.md#security).",
        ),
        Entry(
            "interfaces/server/access.py",
            "the API key is wrong",
            "The key is none of the server's (status 401).",
            "Compare it with `DRAFTTREE_API_KEY` or the file of `--api-key-file`.",
        ),
        Entry(
            "interfaces/server/access.py",
            "the host name … is not allowed",
            "The request names a host that the server does not know (status 421).",
            "Start the server with `--allowed-hosts NAME`.",
        ),
        Entry(
            "interfaces/server/serving.py",
            "the model … is not served",
            "The request asks for another model (status 404).",
            "Use a name from `/v1/models`, or add one by `--served-model-name`.",
        ),
        Entry(
            "interfaces/server/admission.py",
            "… texts are running or waiting",
            "The queue is full (status 429).",
            "Try again later, or raise `--max-queue`.",
        ),
        Entry(
            "engine/batching/loop.py",
            "memory ran out; … requests wait again",
            "There was not enough memory for all texts. No text is lost.",
            "Lower `--max-batch`, `--max-model-len` or `--prefix-tokens`.",
        ),
        Entry(
            "interfaces/cli/connect.py",
            "no server answers at",
            "`drafttree connect` found no server.",
            "Start `drafttree serve` first, or give its address by `--url`.",
        ),
    ],
}


def document() -> str:
    """The whole page.

    Raises:
        LookupError: the source has no message, or several, with the beginning of an entry.
    """
    return "\n".join([INTRODUCTION, *(_section(title, entries) for title, entries in SECTIONS.items())])


def _section(title: str, entries: list[Entry]) -> str:
    rows = [f"| `{_message(entry)}` | {entry.meaning} | {entry.advice} |" for entry in entries]
    return "\n".join([f"## {title}", "", "| message | what it means | what to do |", "| --- | --- | --- |", *rows, ""])


def _message(entry: Entry) -> str:
    """The whole message of an entry, as the source has it."""
    syntax = ast.parse((SOURCES / entry.file).read_text())
    messages = {message for message in _texts(syntax) if message.startswith(entry.beginning)}
    if len(messages) != 1:
        raise LookupError(f"{entry.file} has {len(messages)} messages that begin with {entry.beginning!r}; correct it")
    return messages.pop().replace("|", "\\|")


def _texts(syntax: ast.AST) -> Iterator[str]:
    """All strings of a file, with `GAP` for each value that is formatted into them."""
    for node in ast.iter_child_nodes(syntax):
        if isinstance(node, ast.JoinedStr):
            pieces = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
            yield _joined("".join(map(str, pieces)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _joined(CONVERSION.sub(GAP, node.value))
        else:
            yield from _texts(node)


def _joined(text: str) -> str:
    """A text with one `GAP` for several in a row."""
    return re.sub(rf"{GAP}(\s*{GAP})+", GAP, text).replace("%%", "%")


if __name__ == "__main__":
    DOCUMENT.write_text(document())
