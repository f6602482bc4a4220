"""Train the pair of models embedded in drafttree, in one resumable command:

    python recipes/embedded_pair.py --data shared/data --out build/embedded --tokens 40000000

Tokenizer, token cache, joint training, export, evaluation, model card. A stage whose result lies in `--out` is not
repeated, and training goes on from its last checkpoint. Stop it with Ctrl-C or SIGTERM: it saves first.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
from transformers.utils import logging

import card
import corpus
import evaluate
import tokens
from schedule import next_moment
from training import Trainer
from windows import Windows


def main() -> None:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "pid").write_text(str(os.getpid()))
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    prepare_text(options.data, options.out)
    if options.extend or not (options.out / "final").exists():
        train(options)
    report(options.data, options.out)


def prepare_text(data: Path, out: Path) -> None:
    """Learn the tokenizer and write the token stream."""
    if (out / "tokens.npy").exists():
        return
    texts = corpus.documents(data)
    tokenizer = tokens.train_tokenizer(texts, out / "tokenizer")
    tokens.token_cache(texts, tokenizer, out / "tokens.npy")


def train(options: argparse.Namespace) -> None:
    """Train until the budget is spent and export, or leave if stopped before."""
    stream = tokens.read_stream(options.out / "tokens.npy")
    print(f"{len(stream):,} tokens of text", flush=True)
    trainer = Trainer(Windows(stream), options.out / "tokenizer", options.out)
    resume(trainer, options.extend)
    trainer.spend(options)
    (options.out / "history.json").write_text(json.dumps(trainer.history))
    trainer.export("final")


def resume(trainer: Trainer, extend: bool) -> None:
    """Go on from the last checkpoint; a finished run is extended by taking its models through the schedule again."""
    if trainer.checkpoint.exists():
        trainer.load()
        if extend and trainer.progress >= 1.0:
            trainer.progress = 0.0
        print(f"resumed at step {trainer.step}, progress {trainer.progress:.3f}", flush=True)
    elif extend:
        sys.exit(f"nothing to extend: {trainer.checkpoint} does not exist")


def report(data: Path, out: Path) -> None:
    """Evaluate the exported pair, print what was measured, and write the model card from it."""
    path = out / "evaluation.json"
    if not path.exists() or path.stat().st_mtime < (out / "final").stat().st_mtime:
        path.write_text(json.dumps(evaluate.evaluate(out / "final", data), indent=2))
    figures = json.loads(path.read_text())
    history = json.loads((out / "history.json").read_text())
    card.write(out / "MODEL_CARD.md", figures, history, len(tokens.read_stream(out / "tokens.npy")))
    print(json.dumps(figures, indent=2), card.table(figures["texts"]), sep="\n\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with wikitext2/, books/ and train/")
    parser.add_argument("--out", type=Path, required=True, help="folder for everything that is made")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--tokens", type=int, default=40_000_000, help="tokens to train on in all")
    budget.add_argument("--deadline", type=next_moment, metavar="HH:MM", help="train until this time of day instead")
    parser.add_argument("--extend", action="store_true", help="train a finished run further")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if not (options.data / "books/train.jsonl.gz").exists():
        parser.error(f"{options.data} holds no books/train.jsonl.gz: see its README for the files expected")
    return options


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"embedded_pair: {error}")
