"""Writes the model card from the measured figures."""

from pathlib import Path

CARD = """\
---
license: cc-by-sa-4.0
language: en
library_name: transformers
---

# The embedded pair

A target and a draft model that are small enough to ship inside the package. With them, every example, test and
benchmark of drafttree runs offline. They are toys for demonstrations. The target generates text that looks like
English, knows nothing, and often loops under greedy decoding. Use them only to try speculative decoding.

| | target | draft |
| --- | --- | --- |
| parameters | {target_parameters:,} | {draft_parameters:,} |
| layers, width | 12, 256 | 1, 160 |
| embeddings | separate | shared with the head |
| context | 2048 | 2048 |
| training tokens seen | {tokens:,} | {tokens:,} |

Both are `LlamaForCausalLM` in bfloat16 with one byte-level BPE tokenizer of 4096 entries (lossless: no
normaliser, no prefix space). The chat template writes `User: ...` and `Assistant: ...` lines.

## Measured

`drafttree bench methods` prints the mean accepted tokens of the pair.

{scores}

The first {sample:,} tokens of each text are used, in equal shares of its documents. Every token except
the very first is scored. `wikitext2_valid_raw` is the raw validation file with WikiText's tokenisation undone. The
bytes are those of that text. Agreement is the share of positions where the draft's first choice is the target's first
choice. Containment is the share of positions where the target's first choice is among the draft's first three.

## Recipe

`python recipes/embedded_pair.py --data shared/data --out build/embedded` took about {hours:.1f} hours of wall
clock, pauses included, in float32 on one or two shared CPU cores.

The target is trained on next-token cross-entropy. The draft is distilled in the same pass. Its loss is the
cross-entropy to the target's own probabilities at every position, never to the text. Depth grows during training by
repeating every block. The copies start with zero output projections, so that the function does not change (progressive
stacking, Gong et al. 2019; Du et al. 2024). Muon updates the matrices inside the blocks, AdamW the rest. The learning
rate is constant at first, then falls linearly to zero. Windows have 256 tokens, except for two short phases with 2048,
in the middle and at the end.

| target layers | tokens | final training loss (nats/token) |
| --- | --- | --- |
{stages}

The stages were changed while this pair was trained. The table shows what was done. `recipes/schedule.py` shows what a
new run would do. The last figure is for windows of 2048 tokens.

## Data

The training text has {corpus_tokens:,} tokens and was seen {epochs:.1f} times. It contains no held-out texts and
no benchmark prompts.

| source | licence |
| --- | --- |
| WikiText-2 (Merity et al. 2016; Wikipedia authors), sentences with `<unk>` removed | CC-BY-SA |
| 62 books from Project Gutenberg collections, published before 1919 | public domain (USA) |
| CPython 3.11 standard library (Python Software Foundation) | PSF-2.0 |
| GSM8K training questions (OpenAI) | MIT |
| MBPP problems outside the test split (Google Research, by way of microsoft/CodeT) | CC-BY-4.0, MIT |
| Self-Instruct human-written tasks (Wang et al.) | Apache-2.0 |
| Natural Questions open, questions and answers (Google Research) | CC-BY-SA-3.0 |
| Topical-Chat conversations (Amazon) | CDLA-Sharing-1.0 |
| Schema-Guided Dialogue (Google Research) | CC-BY-SA-4.0 |
| State of the Union addresses, by way of NLTK | public domain (US government) |

## Limits

Ten million parameters and {megatokens:.0f} million training tokens are very few. Facts are invented, arithmetic is
wrong, code does not run, long passages drift, and greedy continuations repeat themselves. Nearly all training windows
had 256 tokens. In longer contexts, both models predict worse and agree less often. The books keep the spelling and the
prejudices of their time.
"""


def write(path: Path, figures: dict, history: list[dict], corpus_tokens: int) -> None:
    """Fill in the model card and write it."""
    tokens = history[-1]["tokens"]
    facts = {
        "target_parameters": figures["parameters"]["target"],
        "draft_parameters": figures["parameters"]["draft"],
        "sample": figures["sample"],
        "tokens": tokens,
        "megatokens": tokens / 1e6,
        "corpus_tokens": corpus_tokens,
        "epochs": tokens / corpus_tokens,
        "hours": _hours(history),
    }
    path.write_text(CARD.format(**facts, scores=table(figures["texts"]), stages=_stages(history)), encoding="utf-8")


def table(texts: dict[str, dict]) -> str:
    """Format the scores as a Markdown table, one text per row."""
    columns = list(next(iter(texts.values())))
    rows = [["text", *columns], ["---"] * (len(columns) + 1)]
    rows += [[name, *map(str, scores.values())] for name, scores in texts.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _stages(history: list[dict]) -> str:
    """Format the tokens trained at each depth and the training loss at its end."""
    ends = {row["layers"]: row for row in history}
    starts = [0, *(row["tokens"] for row in ends.values())]
    return "\n".join(
        f"| {layers} | {row['tokens'] - start:,} | {row['text']:.2f} |"
        for (layers, row), start in zip(ends.items(), starts, strict=False)
    )


def _hours(history: list[dict]) -> float:
    seen = [0, *(row["tokens"] for row in history)]
    return sum((now - before) / row["speed"] for row, before, now in zip(history, seen, seen[1:], strict=False)) / 3600
