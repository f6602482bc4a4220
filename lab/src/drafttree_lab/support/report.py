"""The documents docs/models.md and docs/popular-models.md, made from the tables of results."""

import re

from drafttree_lab.support.check import EXACT, LENGTH, POLICIES, PROMPT_LENGTHS, Finding
from drafttree_lab.support.image_models import IMAGES
from drafttree_lab.support.popular_configs import POPULAR
from drafttree_lab.support.random_models import language_models
from drafttree_lab.support.sweep import VERSIONS, SupportTable

TEXT = """# Models

<!-- `drafttree support --out FILE > docs/models.md` makes this page. It continues from FILE.
`--only NAME` tests one architecture. -->

Does drafttree run your architecture? This table has every causal language model in transformers {transformers}. Each
was built small, with random weights and every kind of layer that it mixes, and run by drafttree {drafttree} (torch
{torch}, CPU, float32).

- **exact**: greedy texts with {policies} equal those that transformers' `generate` wrote with
  the same weights, before drafttree touched them. Texts drawn with a seed equal those of plain decoding. Ties are left
  out: scores within 1e-5, between which rounding decides. Texts have {length} tokens, prompts {lengths}, and sliding
  windows 8. The test drafter alternates between correct, second-best and wrong tokens.
- **refused**: `drafttree.load` says why in one line.
- **not built**: transformers cannot make the small model, or generate with it.
- **fails**: another text, or an error that is not drafttree's own.

{counts}.

| architecture | result | |
| --- | --- | --- |
{rows}

With text alone, a model beside others is as its language model: {parts}.

## Prompts with images

These families were built with their vision encoders and run with prompts of one and two images. **exact** means the
same as above, but every difference counts, ties too, and video and audio are refused by name. transformers' module
reads the images. The last column says what runs the passes behind them on a CPU.

{image_counts}.

| family | result | | passes by |
| --- | --- | --- | --- |
{image_rows}

A family that is missing here may run too. When a loaded model first reads an image, a trial compares its scores behind
the image with those of transformers. If they differ, images are refused by name.
"""


POPULAR_TEXT = """# Popular models

<!-- `drafttree support --popular --out FILE > docs/popular-models.md` makes this page. -->

Does drafttree run your model, and what runs its passes on a CPU? If nothing faster does, the last column says why.
[Models](models.md) explains the results.

Each model was built from its own config, with few layers, small widths and random weights. Contexts, vocabularies,
heads, windows, rotary embeddings, experts and EOS tokens are the model's own (sources are in
`drafttree_lab/support/popular_configs.py`). They were run by drafttree {drafttree} (torch {torch}, transformers
{transformers}, CPU, float32).

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
    return ", ".join(f"{count} {result}" for result, count in table.counts.items()) or "None were checked"


def _popular_row(finding: Finding) -> str:
    config = POPULAR[finding.name].config
    reason = f": {_short(finding.reason)}" if finding.reason else ""
    sizes = f"{config.max_position_embeddings:,} | {config.vocab_size:,}"
    return f"| {finding.name} | {sizes} | {finding.result}{reason} | {_short(finding.runs_on)} |"


def to_markdown(table: SupportTable) -> str:
    """The document about all architectures, docs/models.md."""
    of_text = SupportTable([finding for finding in table.findings if not finding.name.endswith(IMAGES)])
    of_images = SupportTable([finding for finding in table.findings if finding.name.endswith(IMAGES)])
    return TEXT.format(
        **VERSIONS,
        policies=_listed([*POLICIES]),
        length=LENGTH,
        lengths=_listed(list(map(str, PROMPT_LENGTHS))),
        counts=_told_counts(of_text),
        rows="\n".join(map(_row, of_text.findings)),
        image_counts=_told_counts(of_images),
        image_rows="\n".join(map(_image_row, of_images.findings)),
        parts=", ".join(
            f"`{model_type}` as `{language_type}`" for model_type, language_type in sorted(language_models().items())
        ),
    )


def _row(finding: Finding) -> str:
    partial_reason = finding.result == EXACT and finding.reason
    result = f"{EXACT} ({', '.join(finding.exact)})" if partial_reason else finding.result
    return f"| `{finding.name}` | {result} | {_short(finding.reason)} |"


def _image_row(finding: Finding) -> str:
    family = finding.name.removesuffix(IMAGES)
    return f"| `{family}` | {finding.result} | {_short(finding.reason)} | {_short(finding.runs_on)} |"


def _short(reason: str) -> str:
    """A reason without what every refusal begins with, for a cell of a table."""
    reason = re.sub(r"^\w+ cannot be verified in a tree: (it has )?", "", reason)
    return reason.replace("|", "\\|").replace("<", "&lt;")


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
