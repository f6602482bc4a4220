"""Write options.md: every option of transformers' `generate`, from the tables by which drafttree serves and refuses."""

import inspect
import re
from pathlib import Path

from drafttree.constraints.options import ProcessorOptions
from drafttree.constraints.refusals import NO_EFFECT, REFUSED
from drafttree.engine.generation_options import GenerationOptions
from drafttree.interfaces.prepared_inputs import SERVED

DOCUMENT = Path(__file__).parent / "options.md"
INTRODUCTION = """# Options of `generate`

<!-- `python docs/options.py` makes this page from the tables in the code. -->

All options of transformers' `generate`, and drafttree's own: [which are served](#served), which are
[accepted without effect](#accepted-without-effect-on-the-text), and what to do instead of
[those that are refused](#refused-by-name). They are options of `Decoder.generate`, `stream` and `new_request`. The last
column of the last table is about [`custom_generate`](inside-transformers.md).

`drafttree.load` takes its defaults from the model's `generation_config.json` (`Decoder.defaults`), as transformers
does: a model with `do_sample` samples. The options of a call override them. None or a neutral value turns an option
off. Three settings are not taken over: `max_length`, because it counts the prompt too (use `max_new_tokens`, 128 by
default); `output_*`; and the `top_k` of 50 that transformers adds where the model says nothing. EOS tokens are those
of the generation config, or else of the tokenizer. A `Decoder` made without `load` has no defaults unless you give it
some.
"""
NOTE = """None, False and the neutral values are accepted. [Inside transformers](inside-transformers.md) says how
`custom_generate` serves caches, scores, streamers and batches."""


def document() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_served(), "", *_no_effect(), "", *_refused(), ""])


def _served() -> list[str]:
    described = _descriptions(GenerationOptions)
    rows = [f"| `{name}` | {described[name]} |" for name in described]
    rows += [f"| `{name}` | as in transformers |" for name in ProcessorOptions.__annotations__]
    return ["## Served", "", "| option | meaning |", "| --- | --- |", *rows]


def _no_effect() -> list[str]:
    rows = [f"| `{name}` | {reason} |" for name, reason in NO_EFFECT.items()]
    return ["## Accepted, without effect on the text", "", "| option | why |", "| --- | --- |", *rows]


def _refused() -> list[str]:
    head = ["## Refused by name", "", NOTE, ""]
    head += ["| option | neutral | what to do instead | `custom_generate` |", "| --- | --- | --- | --- |"]
    rows = [
        f"| `{name}` | {', '.join(f'`{value!r}`' for value in refused.neutral)} | {refused.advice} | "
        f"{'served' if name in SERVED else 'refused'} |"
        for name, refused in REFUSED.items()
    ]
    return head + rows


def _descriptions(options: type) -> dict[str, str]:
    """The attributes of a class and what its docstring says of each."""
    text = inspect.getdoc(options) or ""
    entries = re.split(r"\n    (?=\w+: )", text.partition("Attributes:")[2])
    pairs = (entry.strip().partition(": ") for entry in entries if entry.strip())
    return {name: " ".join(meaning.split()) for name, _, meaning in pairs}


if __name__ == "__main__":
    DOCUMENT.write_text(document())
