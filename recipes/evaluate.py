"""Evaluates the embedded pair on held-out text: the target's bits per byte and the draft model's agreement with it."""

import gzip
import math
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

import corpus

WINDOWS = (256, 1024)
SAMPLE = 100_000


def evaluate(pair: Path, data: Path) -> dict:
    """Compute the figures of the model card on a sample of each held-out text."""
    target, draft = (AutoModelForCausalLM.from_pretrained(pair / name).float() for name in ("target", "draft"))
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    texts = {"wikitext2_valid_raw": _wikitext(data), "books_test": _books(data)}
    rows = {name: sample(tokenizer, text) for name, text in texts.items()}
    return {
        "parameters": {"target": target.num_parameters(), "draft": draft.num_parameters()},
        "sample": SAMPLE,
        "texts": {
            f"{name}, windows of {window}": score(target, draft, *row, window)
            for name, row in rows.items()
            for window in WINDOWS
        },
    }


def sample(tokenizer: PreTrainedTokenizerFast, texts: list[str], total: int = SAMPLE) -> tuple[Tensor, int]:
    """Return equal parts of the beginnings of all documents as one row of token ids, and the bytes they spell."""
    rows = [tokenizer.encode(text, verbose=False)[: total // len(texts)] for text in texts]
    ids = [token for row in rows for token in (tokenizer.eos_token_id, *row)]
    spellings = (tokenizer.convert_ids_to_tokens(row) for row in rows)
    return torch.tensor(ids), sum(len(token) for row in spellings for token in row)


@torch.inference_mode()
def score(target: LlamaForCausalLM, draft: LlamaForCausalLM, ids: Tensor, text_bytes: int, window: int) -> dict:
    """Score consecutive windows; every token but the very first is predicted once.

    EOS tokens between documents cost bits but count no bytes, so the bits per byte are slightly too high.
    """
    nats, agreeing, contained = 0.0, 0, 0
    for start in range(0, len(ids) - 1, window):
        row = ids[start : start + window + 1]
        logits, draft_logits = (model(row[None, :-1]).logits[0] for model in (target, draft))
        choice, top = logits.argmax(-1, keepdim=True), draft_logits.topk(3).indices
        nats += torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum").item()
        agreeing += int((top[:, :1] == choice).sum())
        contained += int((top == choice).sum())
    positions = len(ids) - 1
    return {
        "tokens": positions,
        "bytes": text_bytes,
        "target bits per byte": round(nats / math.log(2) / text_bytes, 4),
        "draft top-1 agreement": round(agreeing / positions, 4),
        "draft top-3 containment": round(contained / positions, 4),
    }


def _wikitext(data: Path) -> list[str]:
    """Read the raw validation file and undo its tokenisation as in training."""
    with gzip.open(data / "wikitext2/wiki.valid.raw.gz", "rt", encoding="utf-8") as file:
        return [text for text in corpus.articles(file.read()) if text.strip()]


def _books(data: Path) -> list[str]:
    return [book["text"] for book in corpus.read_jsonl(data / "books/test.jsonl.gz")]
