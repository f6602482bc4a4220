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

Made by `python docs/options.py` from the tables that serve and refuse. `Decoder.generate`, `stream` and `new_request`
take the options below; `custom_generate=drafttree.hf.generate(...)` takes transformers' own, which its `generate` turns
into processors and stopping criteria before it calls us, and honours or refuses them by the same tables.

`drafttree.load` adopts what the model's `generation_config.json` sets as defaults (`Decoder.defaults`), as `generate`
does: a model that says `do_sample` samples. A call has the last word, and None or a neutral value turns an option off.
Not adopted: `max_length` (it counts the prompt too, so one number would end the texts of long prompts at once; the
length of a text is `max_new_tokens`, 128 by default), `output_*`, and the `top_k` of 50 that transformers itself adds
where the model says nothing. EOS tokens are those of the generation config, else of the tokenizer. A `Decoder` made
without `load` has no defaults unless it is given some.
"""
CACHES = """With `custom_generate`, a `DynamicCache` in `past_key_values` is continued, filled and returned.
Models with recurrent layers refuse one and return None. A cache whose sliding windows have trimmed rows is refused."""


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
    head = ["## Refused by name", "", "None, False and the neutral values are accepted.", "", CACHES, ""]
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
