"""Heads trained on what their target writes: prompts, texts, cached states, and runs that stop and go on."""

import importlib
import json
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import drafttree
from drafttree.drafters.formats import eagle3 as eagle3_format
from drafttree.drafters.formats import read_config, read_tensors
from helpers.small_disk import SmallDisk
from helpers.toy_run import stop
from testing import tiny

SIZES = ("--heads", "3", "--batch", "80", "--threads", "1", "--dtype", "float32", "--write", "1200", "--tokens", "1600")
MLP = {"eagle3": ("--mlp", "24", "--draft-vocab", "40"), "medusa": ()}
TEMPLATE = "{% for message in messages %}w1 {{ message['content'] }} {% endfor %}w2"


@pytest.fixture(scope="module")
def chat_target(target, tmp_path_factory) -> Path:
    """The target that counts, with a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "target"
    shutil.copytree(target, folder)
    save_tokenizer(folder, tiny.VOCAB)
    return folder


def save_tokenizer(folder: Path, words: int) -> None:
    known = Tokenizer(models.WordLevel({f"w{token}": token for token in range(words)}, unk_token="w0"))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=known, eos_token="w0")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [" ".join(f"w{(start + step) % 90 + 3}" for step in range(start % 7 + 3)) for start in range(60)]
    path.write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def short_replies(surroundings, monkeypatch):
    monkeypatch.setattr(importlib.import_module("writing"), "LONGEST_REPLY", 24)
    monkeypatch.setattr(importlib.import_module("writing"), "AT_ONCE", 5)
    monkeypatch.setattr(importlib.import_module("written"), "PASS_TOKENS", 40)


def train(target: Path, source: tuple, out: Path, *options: str, recipe: str = "eagle3") -> None:
    places = ("--target", str(target), "--out", str(out), *map(str, source))
    importlib.import_module(recipe).main([*places, *SIZES, *MLP[recipe], *options])


def begun(target: Path, texts: Path, out: Path, kind: str = "eagle3"):
    """A run that has not begun, with random weights so that every gradient shows."""
    recipe, settings = importlib.import_module(kind), importlib.import_module("settings")
    parser, objective = getattr(recipe, f"{kind}_parser"), getattr(recipe, f"{kind.capitalize()}Objective")
    places = ("--target", str(target), "--out", str(out), "--texts", str(texts))
    chosen = parser().parse_args([*places, *SIZES, *MLP[kind]])
    run = recipe.begin(chosen, settings.Settings(kind, chosen), objective, None)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in run.heads.named_parameters():
        if parameter.requires_grad:  # attention that is sharp enough for positions to matter
            parameter.data.normal_(0, 0.8 if "q_proj" in name or "k_proj" in name else 0.2, generator=generator)
    return run


@pytest.fixture(scope="module")
def texts(chat_target, prompts, tmp_path_factory) -> Path:
    """Texts that the target has written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "recipes")
        patch.setattr(importlib.import_module("writing"), "LONGEST_REPLY", 24)
        out = tmp_path_factory.mktemp("written")
        train(chat_target, ("--prompts", prompts), out, "--tokens", "80")
    return out / "texts"


def test_texts_are_what_the_target_writes_and_their_states_what_it_computes(chat_target, texts):
    """Half of the texts are greedy; of those, every token of the reply is the best after the tokens before it."""
    writing = importlib.import_module("writing")
    module = AutoModelForCausalLM.from_pretrained(chat_target)
    files, greedy = sorted(texts.glob("*.safetensors")), []
    for path in files:
        stored = load_file(path)
        tokens, prompt = stored["tokens"].long(), int(stored["prompt"])
        assert tokens[:prompt].tolist()[0] == 1
        assert tokens[prompt - 1] == 2
        with torch.no_grad():
            out = module(tokens[None, :-1], output_hidden_states=True)
        for layer, states in zip((2, 1, 0, 3), stored["states"].float(), strict=True):
            torch.testing.assert_close(states, out.hidden_states[layer][0], atol=0.03, rtol=0.01)
        assert len(tokens) - prompt == 24 or tokens[-1] == 0
        greedy.append(bool((out.logits[0, prompt - 1 :].argmax(-1) == tokens[prompt:]).all()))
    assert 0.25 < sum(greedy) / len(files) < 0.9
    assert writing.TEMPERATURE == 0.7


def test_texts_and_heads_of_stopped_runs_are_those_of_whole_ones(chat_target, prompts, tmp_path, monkeypatch):
    train(chat_target, ("--prompts", prompts), tmp_path / "whole")
    writing, written = importlib.import_module("writing"), importlib.import_module("written")
    keep, kept = writing.WrittenTexts.keep, []

    def killed(texts, number, text):
        if len(kept) in (3, 17):
            kept.append(None)
            raise KeyboardInterrupt
        kept.append(number)
        keep(texts, number, text)

    monkeypatch.setattr(writing.WrittenTexts, "keep", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(chat_target, ("--prompts", prompts), tmp_path / "parts")
    files = [sorted((tmp_path / name / "texts").glob("text-*")) for name in ("whole", "parts")]
    assert 3 < len(files[1]) < len(files[0])
    for path in files[1]:
        assert path.read_bytes() == (tmp_path / "whole/texts" / path.name).read_bytes()
    shutil.rmtree(tmp_path / "parts")
    monkeypatch.undo()
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "recipes")
    monkeypatch.setattr(written, "PASS_TOKENS", 40)
    source = ("--texts", tmp_path / "whole/texts")
    train(chat_target, source, tmp_path / "again")
    stop(monkeypatch, 3, 11, kind=written.WrittenRun)
    for _ in range(2):
        with pytest.raises(SystemExit, match="goes on from there"):
            train(chat_target, source, tmp_path / "parts")
    assert torch.load(tmp_path / "parts/checkpoint.pt", weights_only=True)["order"]["epoch"] == 0
    train(chat_target, source, tmp_path / "parts")
    finals = [read_tensors(tmp_path / name / "final") for name in ("again", "parts")]
    for name, tensor in finals[0].items():
        assert torch.equal(finals[1][name], tensor), name


def test_every_level_learns_what_it_says_when_it_drafts(chat_target, texts, tmp_path, monkeypatch):
    """With all rows kept, losses are those of the drafter along each text, level by level, from every reply token."""
    monkeypatch.setattr(importlib.import_module("written"), "KEPT_SHARE", 1.0)
    run = begun(chat_target, texts, tmp_path)
    folder = tmp_path / "untrained"
    run.objective.write(folder)
    module = AutoModelForCausalLM.from_pretrained(chat_target)
    stored = read_tensors(folder)
    maps = {name: tensor for name, tensor in stored.items() if name in ("d2t", "t2d")}
    floats = {name: tensor.float() for name, tensor in stored.items()} | maps
    for parameter in run.heads.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float() if parameter.requires_grad else parameter.data
    drafter = eagle3_format.FORMAT.load(floats, read_config(folder), module)
    (pack, *_), ids = run._packs(), drafter.modules[0].target_ids
    rows = pack.levels(3, np.random.default_rng(0))
    losses = run.forward_backward(pack, rows, [1.0, 0.5, 0.25])
    nats, counts, names = torch.zeros(3), torch.zeros(3), run.order.names
    assert len(np.unique(pack.text)) == 2
    for name in names[:2]:
        text = run.texts.read(texts / name)
        tokens, states = text.tokens.tolist(), tuple(state[None].float() for state in text.states[:3])
        logits = text.states[-1].float() @ module.lm_head.weight.T
        for start in range(text.prompt, len(tokens) - 1):
            draft = drafter.start(tokens[: start + 1], 64)
            draft.prefill(tuple(state[:, :start] for state in states), start)
            frontiers = (torch.tensor([[token]]) for token in tokens[start + 1 : start + 3])
            said = [draft.draft_root()]
            said += [draft.draft_level(frontier, torch.zeros(1, 1).long()) for frontier in frontiers]
            for level, said_logits in enumerate(said[: len(tokens) - 1 - start]):
                counts[level] += 1
                if tokens[start + level + 1] in ids:
                    probs = logits[start + level, ids].softmax(-1)
                    nats[level] -= (probs * said_logits[0, 0, ids].log_softmax(-1)).sum()
    assert torch.equal(losses.rows, counts)
    torch.testing.assert_close(losses.nats, nats, atol=1e-3, rtol=1e-4)


def test_medusa_heads_learn_from_the_last_state(chat_target, texts, tmp_path):
    """The loss of head k at a token is that of the distribution k + 1 tokens later, by a pass of the target."""
    run, module = begun(chat_target, texts, tmp_path, "medusa"), AutoModelForCausalLM.from_pretrained(chat_target)
    pack = run._packs()[0]
    rows = pack.levels(3, np.random.default_rng(0))
    losses, nats, begin = run.forward_backward(pack, rows, [1.0, 1.0, 1.0]), torch.zeros(3), 0
    for name in run.order.names[: pack.text.max() + 1]:
        tokens = run.texts.read(texts / name).tokens
        with torch.no_grad():
            out = module(tokens[None, :-1], output_hidden_states=True)
            for level, chosen in enumerate(rows):
                here = chosen[(chosen >= begin) & (chosen < begin + len(tokens) - 1)] - begin
                said = module.lm_head(run.heads[level](out.hidden_states[-1][0, here])).log_softmax(-1)
                nats[level] -= (out.logits[0, here + 1 + level].softmax(-1) * said).sum()
        begin += len(tokens) - 1
    torch.testing.assert_close(losses.nats, nats, atol=0.05, rtol=2e-3)


def test_levels_that_keep_some_rows_say_there_what_they_say_with_all(chat_target, texts, tmp_path, monkeypatch):
    run = begun(chat_target, texts, tmp_path)
    pack = run._packs()[0]
    some = pack.levels(3, np.random.default_rng(0))
    monkeypatch.setattr(importlib.import_module("written"), "KEPT_SHARE", 1.0)
    every = pack.levels(3, np.random.default_rng(0))
    assert 0.4 * len(some[0]) < len(some[1]) < 0.6 * len(every[1]) + 1
    said = [run.objective.pack_outputs(pack, rows) for rows in (some, every)]
    for kept, rows, few, whole in zip(some, every, *said, strict=True):
        torch.testing.assert_close(few, whole[np.searchsorted(rows, kept)], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("reply", [0, 1, 2, 3])
def test_a_reply_may_be_too_short_for_some_levels_or_all(reply, chat_target, texts, tmp_path):
    run = begun(chat_target, texts, tmp_path)
    writing, written = importlib.import_module("writing"), importlib.import_module("written")
    text = run.order.next()
    cut = writing.WrittenText(
        text.tokens[: text.prompt + reply], text.prompt, text.states[:, : text.prompt + reply - 1]
    )
    pack = written.Pack([cut], run.weight)
    rows = pack.levels(3, np.random.default_rng(0))
    losses = run.forward_backward(pack, rows, [1.0, 1.0, 1.0])
    assert losses.rows.tolist() == [len(level) for level in rows]
    assert losses.rows[0] == max(reply - 1, 0)
    assert losses.nats[0] > 0 or reply < 2


def test_gradients_are_those_of_the_loss(chat_target, texts, tmp_path):
    """A small step along the gradient lowers the weighted loss by the square of its length."""
    run, weights = begun(chat_target, texts, tmp_path), [0.01, 0.02, 0.03]
    pack = run._packs()[0]
    rows = pack.levels(3, np.random.default_rng(0))
    assert len(rows[0]) > len(rows[1]) > len(rows[2])

    def loss() -> float:
        run.heads.zero_grad(set_to_none=True)
        return float((run.forward_backward(pack, rows, weights).nats * torch.tensor(weights)).sum())

    before = loss()
    learning = [parameter for parameter in run.heads.parameters() if parameter.requires_grad]
    steepness = sum(float(parameter.grad.square().sum()) for parameter in learning)
    step = 0.002 / steepness
    for parameter in learning:
        parameter.data -= step * parameter.grad
    assert before - loss() == pytest.approx(step * steepness, rel=0.1)


@pytest.mark.parametrize(("recipe", "hits"), [("eagle3", 0.3), ("medusa", 0.1)])
def test_heads_learn_what_the_target_writes(recipe, hits, chat_target, texts, tmp_path, capsys):
    train(chat_target, ("--texts", texts), tmp_path, "--tokens", "12000", "--rate", "0.01", recipe=recipe)
    history = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["history"]
    assert history[-1]["hits"][0] > hits
    assert "minutes left" in capsys.readouterr().out
    decoder = drafttree.load(str(chat_target), str(tmp_path / "final"), dtype="float32")
    prompt = [{"role": "user", "content": "w5 w6 w7"}]
    out = decoder.generate(prompt, max_new_tokens=12, temperature=0)
    assert out.tokens == decoder.plain().generate(prompt, max_new_tokens=12, temperature=0).tokens


def test_texts_that_are_still_being_written_join_the_next_epoch(chat_target, texts, tmp_path):
    shutil.copytree(texts, tmp_path / "texts")
    later = sorted((tmp_path / "texts").glob("text-*"))[-1]
    hidden = later.rename(tmp_path / later.name)
    run = begun(chat_target, tmp_path / "texts", tmp_path / "out")
    seen = [run.order.next() for _ in range(3)]
    hidden.rename(later)
    count = len(run.order.names)
    taken = [run.order.next() and run.order.names[run.order.taken - 1] for _ in range(2 * count - 2)]
    assert later.name not in taken[: count - 3]
    assert later.name in taken[count - 3 :]
    assert len(seen) == 3


def test_the_draft_vocabulary_is_what_the_replies_have_most_of(chat_target, texts, tmp_path):
    run, counts = begun(chat_target, texts, tmp_path), np.zeros(tiny.VOCAB, dtype=int)
    for path in texts.glob("text-*"):
        text = run.texts.read(path)
        counts += np.bincount(text.tokens[text.prompt :], minlength=tiny.VOCAB)
    chosen = run.heads.target_ids.numpy()
    assert len(chosen) == 40
    assert counts[chosen].min() >= np.delete(counts, chosen).max()
    assert counts[chosen].sum() < counts.sum()


def test_a_disk_without_room_is_told_before_anything_is_loaded(chat_target, prompts, tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    writing = importlib.import_module("writing")
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda _: usage(2_000_000_000 + 300 * 256 - 1))
    monkeypatch.setattr(writing.drafttree, "load", None)
    told = r"states of 1,200 tokens need 2.0 GB, 0.3 kB each .* write 299 tokens more at most"
    with pytest.raises(SystemExit, match=told):
        train(chat_target, ("--prompts", prompts), tmp_path)


def test_a_disk_that_fills_while_texts_are_written(chat_target, prompts, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        SmallDisk(patch, 60_000, "text-")
        with pytest.raises(SystemExit, match=r"the disk is full: .*/texts/text-.* the same command goes on"):
            train(chat_target, ("--prompts", prompts), tmp_path)
    assert 1 < len(list((tmp_path / "texts").glob("text-*"))) < 12
    assert not list(tmp_path.rglob("*.partial"))
    train(chat_target, ("--prompts", prompts), tmp_path)


def test_a_damaged_text_is_written_again(chat_target, prompts, tmp_path):
    train(chat_target, ("--prompts", prompts), tmp_path / "out", "--tokens", "80")
    path = tmp_path / "out/texts/text-000003.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    for name in ("tokens.npy", "final"):
        (tmp_path / "out" / name).rename(tmp_path / name)
    train(chat_target, ("--prompts", prompts), tmp_path / "out", "--tokens", "160")
    assert path.read_bytes() == whole


def test_texts_of_another_target_or_tokenizer_are_refused(chat_target, texts, tmp_path):
    other = tmp_path / "target"
    shutil.copytree(chat_target, other)
    save_tokenizer(other, tiny.VOCAB - 1)
    with pytest.raises(SystemExit, match=r"were written with another tokenizer: .* use another --out or the target"):
        train(other, ("--texts", texts), tmp_path / "a")
    with pytest.raises(SystemExit, match=r"were written with another target: target, not renamed"):
        train(shutil.copytree(chat_target, tmp_path / "renamed"), ("--texts", texts), tmp_path / "b")


def test_what_does_not_do_is_refused(target, chat_target, prompts, texts, tmp_path):
    with pytest.raises(SystemExit, match="has no chat template; give --data instead of --prompts"):
        train(target, ("--prompts", prompts), tmp_path / "a")
    with pytest.raises(SystemExit, match="--cache and --own-projection are for --data"):
        train(chat_target, ("--texts", texts), tmp_path / "b", "--cache")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"answer": "w1"}\n')
    with pytest.raises(SystemExit, match=r'bad.jsonl: line 1 has no "prompt", "question", "turns" or "text"'):
        train(chat_target, ("--prompts", bad), tmp_path / "c")
    with pytest.raises(SystemExit, match="hold no prompt that is not held out"):
        train(chat_target, ("--prompts", prompts), tmp_path / "d", "--held-out", str(prompts))


def test_prompts_that_share_text_with_held_out_ones_are_left_out(tmp_path):
    shipped = Path(drafttree.__file__).parent / "measure/data/prompts/humaneval.jsonl"
    known = json.loads(shipped.read_text().splitlines()[0])["prompt"]
    long = " ".join(f"word{number}" for number in range(20))
    rows = [
        {"question": "How many  apples, in all?"},
        {"question": "how many apples in all"},
        {"question": "How many pears in all?"},
        {"prompt": f"Before. {long.upper()} After."},
        {"prompt": " ".join(long.split()[:12])},
        {"turns": [f"Complete the code I provided.\n\n{known}"]},
        {"text": f"import os\n\n{known}    return None\n"},
        {"prompt": "kept " * 400},
    ]
    files, held = tmp_path / "prompts.jsonl", tmp_path / "held.jsonl"
    files.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("How many apples in all?", long)))
    found = importlib.import_module("prompts").training_prompts([files], [held])
    assert sorted(found) == sorted(["How many pears in all?", " ".join(long.split()[:12])])


def test_functions_become_prompts_that_end_with_their_docstring(tmp_path):
    code = '''
class Box:
    def size(self, unit: str = "cm",
             round=int) -> int:
        """Return the size.

        In a unit.
        """
        return 3

    def plain(self):
        return 4

def broken(x):
    \'\'\'One line.\'\'\'
  return x
'''
    path = tmp_path / "code.jsonl"
    path.write_text(json.dumps({"path": "box.py", "text": code}))
    signature = 'def size(self, unit: str = "cm",\n         round=int) -> int:\n'
    first = signature + '    """Return the size.\n\n    In a unit.\n    """\n'
    second = "Complete the code I provided.\n\ndef broken(x):\n    '''One line.'''\n"
    assert importlib.import_module("prompts").read(path) == [first, second]


def test_files_of_prompts_take_turns(tmp_path):
    for name, count in (("a", 4), ("b", 1), ("c", 2)):
        rows = [json.dumps({"prompt": f"{name} number {number}"}) for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    files = [tmp_path / f"{name}.jsonl" for name in "abc"]
    found = importlib.import_module("prompts").training_prompts(files, [])
    assert "".join(prompt[0] for prompt in found) == "abcacaa"
    assert found == importlib.import_module("prompts").training_prompts(files, [])
