"""The documents docs/models.md and docs/popular-models.md, made from the tables of results."""

import re

from drafttree_lab.support.check import EXACT, LENGTH, POLICIES, PROMPT_LENGTHS, Finding
from drafttree_lab.support.popular_configs import POPULAR
from drafttree_lab.support.random_models import language_models
from drafttree_lab.support.sweep import VERSIONS, SupportTable

TEXT = """# Models

Every causal language model of transformers {transformers}, built small and random with every kind of layer it
mixes, and run by drafttree {drafttree} (torch {torch}, CPU, float32). Made by
`drafttree support --out FILE > docs/models.md`, which goes on from what FILE has; `--only NAME` checks one.

- **exact**: greedy texts over {policies} are those that transformers' `generate` wrote
  with the same weights before drafttree touched them, and texts drawn with a seed are those of plain decoding,
  but for ties: scores within 1e-5, between which rounding decides.
  {length} tokens behind prompts of {lengths}, windows of 8; the test drafter alternates between right,
  second-best and wrong tokens.
- **refused**: `drafttree.load` says why in one line.
- **not built**: transformers cannot make the small model, or generate with it.
- **fails**: another text, or an error that is not drafttree's own.

{counts}.

| architecture | result | |
| --- | --- | --- |
{rows}

A model beside others is as its language model: {parts}.
"""


POPULAR_TEXT = """# Popular models

Their own configs, with few layers, small widths and random weights: contexts, vocabularies, heads, windows, rotary
embeddings, experts and the tokens that end a text are the model's (`drafttree_lab/support/popular_configs.py` says
where they are from). Run by drafttree {drafttree} (torch {torch}, transformers {transformers}, CPU, float32). Made by
`drafttree support --popular --out FILE > docs/popular-models.md`. Results are those of [models](models.md). The last
column says what runs the target's passes on a CPU, and why nothing faster does.

{counts}.

| model | context | vocabulary | result | target passes by |
| --- | --- | --- | --- | --- |
{rows}
"""


def popular_to_markdown(table: SupportTable) -> str:
    """The document about popular models, docs/popular-models.md."""
    return POPULAR_TEXT.format(
        **VERSIONS, counts=_told_counts(table), rows="\n".join(map(_popular_row, table.findings))
    )


def _told_counts(table: SupportTable) -> str:
    """The number of architectures with each result, such as "80 exact, 12 refused"."""
    return ", ".join(f"{count} {result}" for result, count in table.counts.items())


def _popular_row(finding: Finding) -> str:
    config = POPULAR[finding.name].config
    reason = f": {_short(finding.reason)}" if finding.reason else ""
    sizes = f"{config.max_position_embeddings:,} | {config.vocab_size:,}"
    return f"| {finding.name} | {sizes} | {finding.result}{reason} | {_short(finding.runs_on)} |"


def to_markdown(table: SupportTable) -> str:
    """The document about all architectures, docs/models.md."""
    return TEXT.format(
        **VERSIONS,
        policies=_listed([*POLICIES]),
        length=LENGTH,
        lengths=_listed(list(map(str, PROMPT_LENGTHS))),
        counts=_told_counts(table),
        rows="\n".join(map(_row, table.findings)),
        parts=", ".join(
            f"`{model_type}` as `{language_type}`" for model_type, language_type in sorted(language_models().items())
        ),
    )


def _row(finding: Finding) -> str:
    partial_reason = finding.result == EXACT and finding.reason
    result = f"{EXACT} ({', '.join(finding.exact)})" if partial_reason else finding.result
    return f"| `{finding.name}` | {result} | {_short(finding.reason)} |"


def _short(reason: str) -> str:
    """A reason without what every refusal begins with, for a cell of a table."""
    reason = re.sub(r"^\w+ cannot be verified in a tree: (it has )?", "", reason)
    return reason.replace("|", "\\|").replace("<", "&lt;")


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
