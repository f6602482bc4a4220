"""Converts the tokenizer in a GGUF file to a transformers tokenizer.

A file has tokens, their types, and either merges (of byte pieces, as in GPT-2) or scores (SentencePiece). It names how
text is split before merging; the patterns for these names are those that the models were published with.
"""

from collections.abc import Iterator
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from drafttree.core.errors import ModelError
from drafttree.loading.gguf.reader import GGUFFile

CONTROL, USER_DEFINED = 3, 4
"""Numbers of token types: control tokens, and words that are never split."""
SPACE = "▁"
"""The character that replaces a space in SentencePiece's tokens."""
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGITS = r"\p{N}"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{BREAKS}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{BREAKS}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
TEKKEN = rf"{CASED[0]}|{CASED[1]}|\p{{N}}|{SIGNS}|{BREAKS}"
GPT4O = rf"{CASED[0]}{CONTRACTIONS}?|{CASED[1]}{CONTRACTIONS}?|\p{{N}}{{1,3}}|{SIGNS}|{BREAKS}"
SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "olmo", "mpt", "exaone4", "granite-docling", "trillion"), (GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "mellum2"), (DIGITS, GPT2)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), (LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), (QWEN2,)),
    "tekken": (TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4"), (GPT4O,)),
}
"""Patterns that split text before bytes are merged, applied in this order, by the value of `tokenizer.ggml.pre`."""
WHOLE_TOKENS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"}
"""Splits whose tokenizers keep a piece whole if it is a token, and add a BOS token unless the file says otherwise."""
COMPOSED = {"qwen2", "deepseek-r1-qwen"}
"""Splits whose tokenizers first compose letters and marks (NFC)."""
ENDS = {
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"),
    *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "</s>", "<turn|>"),
    "<｜end▁of▁sentence｜>",  # noqa: RUF001
}
"""Tokens that end a text in every vocabulary that has them, since a file names few of them; llama.cpp's list."""


def tokenizer_of(file: GGUFFile) -> PreTrainedTokenizerBase:
    """The tokenizer in a file.

    Raises:
        ModelError: the file has no tokenizer, one of an unknown kind, or an incomplete one.
    """
    tokenizer_model = _value(file, "model")
    if tokenizer_model == "gpt2":
        tokenizer = _byte_level_bpe(file)
    elif tokenizer_model == "llama":
        tokenizer = _sentencepiece(file)
    else:
        content = f"a tokenizer of the kind {tokenizer_model!r}" if tokenizer_model else "no tokenizer"
        raise ModelError(
            f"{file.path} has {content}; drafttree reads those of GPT-2's kind ('gpt2') and SentencePiece's ('llama')"
        )
    tokens = _tokens(file)
    types = _value(file, "token_type", [])
    words = [
        AddedToken(token, normalized=False, special=type_ == CONTROL)
        for token, type_ in zip(tokens, types, strict=False)
        if type_ in {CONTROL, USER_DEFINED} and tokenizer.token_to_id(token) is not None
    ]
    tokenizer.add_tokens(words)
    special_tokens: dict[str, str] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = _token_id(file, key)
        if token_id is not None:
            special_tokens[f"{name}_token"] = tokens[token_id]
    _add_bos_and_eos(file, tokenizer, special_tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=_Uncopied(tokenizer),
        clean_up_tokenization_spaces=False,
        chat_template=_chat_template(file),
        name_or_path=str(file.path),
        **special_tokens,
    )


class _Uncopied:
    """Keeps transformers from copying a tokenizer, which takes seconds for a large vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __deepcopy__(self, _: object) -> Tokenizer:
        return self._tokenizer


def token_ids(file: GGUFFile) -> dict[str, Any]:
    """The token ids of a config.json: BOS, padding, and a list of EOS ids.

    The EOS ids are those that the file names, and its control tokens that are in `ENDS`.

    Raises:
        ModelError: the file has no tokens, or gives an id outside its vocabulary.
    """
    metadata_ids = [_token_id(file, key) for key in ("eos", "eot", "eom")]
    end_ids = [token_id for token_id in metadata_ids if token_id is not None]
    types = _value(file, "token_type", [])
    for token_id, (token, type_) in enumerate(zip(_tokens(file), types, strict=False)):
        if type_ == CONTROL and token in ENDS:
            end_ids.append(token_id)
    end_ids = list(dict.fromkeys(end_ids))
    bos_id = _token_id(file, "bos")
    pad_id = _token_id(file, "padding")
    return {"bos_token_id": bos_id, "eos_token_id": end_ids or None, "pad_token_id": pad_id}


def generation_config_of(file: GGUFFile) -> GenerationConfig:
    """The generation config of a file's model: its token ids, and the sampling options that the file gives."""
    sampling = {
        name: file.metadata[f"general.sampling.{key}"]
        for name, key in (("temperature", "temp"), ("top_k", "top_k"), ("top_p", "top_p"), ("min_p", "min_p"))
        if f"general.sampling.{key}" in file.metadata
    }
    if sampling:
        sampling["do_sample"] = sampling.get("temperature") != 0
    return GenerationConfig(**token_ids(file), **sampling)


def _value(file: GGUFFile, key: str, default: Any = None) -> Any:
    return file.metadata.get(f"tokenizer.ggml.{key}", default)


def _tokens(file: GGUFFile) -> list[str]:
    tokens = _value(file, "tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError(f"{file.path} has no tokens (tokenizer.ggml.tokens); take another file, or pass tokenizer=")
    return tokens


def _token_id(file: GGUFFile, name: str) -> int | None:
    token_id = _value(file, f"{name}_token_id")
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < len(_tokens(file)):
        raise ModelError(f"{file.path} gives tokenizer.ggml.{name}_token_id as {token_id!r}, which is not a token's id")
    return token_id


def _byte_level_bpe(file: GGUFFile) -> Tokenizer:
    """GPT-2's kind of tokenizer: byte-level BPE."""
    split_name = _value(file, "pre", "default")
    merges = _value(file, "merges")
    if split_name not in SPLITS:
        raise ModelError(
            f"{file.path} has a tokenizer that splits text by {split_name!r} (tokenizer.ggml.pre); drafttree knows "
            f"{', '.join(sorted(SPLITS))}"
        )
    if not isinstance(merges, list):
        raise ModelError(f"{file.path} has a tokenizer of GPT-2's kind without merges; take another file")
    vocabulary = {token: token_id for token_id, token in enumerate(_tokens(file))}
    merge_pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merge_pairs, ignore_merges=split_name in WHOLE_TOKENS))
    if split_name in COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in SPLITS[split_name]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(file: GGUFFile) -> Tokenizer:
    """SentencePiece's kind of tokenizer: merges the pair whose result scores best, and falls back to bytes."""
    tokens = _tokens(file)
    is_gemma = str(file.metadata.get("general.architecture", "")).startswith("gemma")
    if is_gemma:  # its files have plain runs of spaces, and scores that do not give the order of merges
        tokens = [SPACE * len(token) if token.isspace() and set(token) == {" "} else token for token in tokens]
        order = range(len(tokens))
    else:
        scores = _value(file, "scores")
        if not isinstance(scores, list) or len(scores) != len(tokens):
            raise ModelError(f"{file.path} has a tokenizer of SentencePiece's kind without a score for each token")
        order = sorted(range(len(tokens)), key=lambda token_id: -scores[token_id])
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    unknown_id = _token_id(file, "unknown")
    merges = list(_merges(vocabulary, (tokens[token_id] for token_id in order)))
    model = models.BPE(
        vocab=vocabulary,
        merges=merges,
        fuse_unk=True,
        byte_fallback=True,
        unk_token=None if unknown_id is None else tokens[unknown_id],
    )
    tokenizer = Tokenizer(model)
    has_prefix = _value(file, "add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if has_prefix else spaces
    if is_gemma:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", left=1)] if has_prefix else steps)
    return tokenizer


def _merges(vocabulary: dict[str, int], tokens: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The pairs of tokens that join to each of `tokens`, in their order; longest left token first."""
    for token in tokens:
        for middle in range(len(token) - 1, 0, -1):
            prefix, suffix = token[:middle], token[middle:]
            if prefix in vocabulary and suffix in vocabulary:
                yield prefix, suffix


def _add_bos_and_eos(file: GGUFFile, tokenizer: Tokenizer, special_tokens: dict[str, str]) -> None:
    """Have the tokenizer add BOS and EOS tokens, if the file says so."""
    adds_bos = _value(file, "model") == "llama" or _value(file, "pre") in WHOLE_TOKENS
    bos_token = special_tokens.get("bos_token") if _value(file, "add_bos_token", adds_bos) else None
    eos_token = special_tokens.get("eos_token") if _value(file, "add_eos_token", False) else None
    frame_tokens = [token for token in (bos_token, eos_token) if token]
    if frame_tokens:
        template = " ".join(token for token in (bos_token, "$A", eos_token) if token)
        ids = [(token, tokenizer.token_to_id(token)) for token in frame_tokens]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)


def _chat_template(file: GGUFFile) -> Any:
    """The chat template, or several by name; None if the file has none."""
    default = file.metadata.get("tokenizer.chat_template")
    names = file.metadata.get("tokenizer.chat_templates", [])
    templates_by_name = {name: file.metadata.get(f"tokenizer.chat_template.{name}") for name in names}
    templates = {name: template for name, template in templates_by_name.items() if template}
    return {"default": default, **templates} if templates and default else default
