"""Options of transformers' `generate` that have no effect or are refused, with the reasons.

Interfaces with requests of their own have such tables too: `interfaces/server/unsupported_fields.py`, and
`interfaces/dynamo/request_options.py`. `docs/options.md` shows this one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig

from drafttree.core.errors import ConfigError, unknown


@dataclass(frozen=True)
class Refused:
    """An option that cannot be served.

    Attributes:
        advice: what to do instead.
        neutral: values besides None and False that request nothing, and so are accepted.
        off: whether False requests nothing; if not, it is refused too.
    """

    advice: str
    neutral: tuple[Any, ...] = ()
    off: bool = True

    def accepts(self, value: object) -> bool:
        """Whether a value requests nothing."""
        return value is None or (self.off and value is False) or any(_same(value, neutral) for neutral in self.neutral)


@dataclass(frozen=True)
class NoEffect:
    """An option that is accepted although it does not change the text.

    Attributes:
        why: the reason.
        kind: the type of its values.
    """

    why: str
    kind: Any = object


_BEAMS = "beam search keeps several texts, but a draft tree belongs to one; leave it out"
_ASSISTED = "the drafter is an argument of drafttree.load"
_STORED = "every request keeps its own KV cache on the model's device; leave it out"
_ENCODER = "its processor compares every text with the prompt of its row; leave it out"
_NEGATIVE = "guidance needs a second pass per token, of another prompt; leave it out"
_HIDDEN = "outputs of the layers are not kept; run the model on the finished text"
_TOKENS = (
    "give the prompt first, as text, token ids or what a tokenizer or processor returns: generate(tokenizer(text))"
)
_BEAMS_ONLY = "applies only to beam search"
_ASSISTANT = "sets up transformers' own speculation"
_SPEED = "says how transformers runs the model, not what it writes"

OPTIONS: dict[str, Refused | NoEffect] = {
    "num_beams": Refused(_BEAMS, (1,)),
    "num_beam_groups": Refused(_BEAMS, (1,)),
    "diversity_penalty": Refused(_BEAMS, (0,)),
    "constraints": Refused("it needs beams; give a grammar"),
    "force_words_ids": Refused("it needs beams; give a grammar"),
    "num_return_sequences": Refused("call generate once for every seed", (1,)),
    "penalty_alpha": Refused("contrastive search compares hidden states of several texts; leave it out", (0,)),
    "dola_layers": Refused("it reads the logits of other layers; leave it out"),
    "guidance_scale": Refused(_NEGATIVE, (1,)),
    "negative_prompt_ids": Refused(_NEGATIVE),
    "negative_prompt_attention_mask": Refused(_NEGATIVE),
    "encoder_repetition_penalty": Refused(_ENCODER, (1,)),
    "encoder_no_repeat_ngram_size": Refused(_ENCODER, (0,)),
    "token_healing": Refused("it rewrites the end of the prompt; leave it out"),
    "cache_implementation": Refused(
        _STORED, ("dynamic", "dynamic_full", "static", "hybrid", "sliding_window", "hybrid_chunked")
    ),
    "assistant_model": Refused(_ASSISTED),
    "assistant_tokenizer": Refused(_ASSISTED),
    "prompt_lookup_num_tokens": Refused('give drafttree.load drafter="lookup"'),
    "assistant_early_exit": Refused(_ASSISTED),
    "use_mtp": Refused(_ASSISTED),
    "speculation_type": Refused(_ASSISTED),
    "output_attentions": Refused(_HIDDEN),
    "output_hidden_states": Refused(_HIDDEN),
    "output_scores": Refused("give logprobs; whole rows come from custom_generate=drafttree.hf.generate(...)"),
    "output_logits": Refused("give logprobs; whole rows come from custom_generate=drafttree.hf.generate(...)"),
    "past_key_values": Refused("give the whole prompt; custom_generate=drafttree.hf.generate(...) continues caches"),
    "streamer": Refused("iterate over Decoder.stream"),
    "tokenizer": Refused("give it to drafttree.load or to the Decoder"),
    "custom_generate": Refused("it is for transformers' own generate; leave it out"),
    "synced_gpus": Refused("the model runs on one device; leave it out"),
    "inputs": Refused(_TOKENS),
    "input_ids": Refused(_TOKENS),
    "inputs_embeds": Refused("give the prompt as text or token ids"),
    "attention_mask": Refused("every prompt is read without padding; leave it out"),
    "position_ids": Refused("every prompt begins at position 0; leave it out"),
    "use_cache": NoEffect("a KV cache is always used"),
    "cache_config": NoEffect(_SPEED),
    "max_cache_len": NoEffect(_SPEED),
    "prefill_chunk_size": NoEffect(_SPEED),
    "low_memory": NoEffect(_SPEED),
    "compile_config": NoEffect(_SPEED),
    "disable_compile": NoEffect(_SPEED),
    "continuous_batching_config": NoEffect(_SPEED),
    "pad_token_id": NoEffect("nothing is padded"),
    "bos_token_id": NoEffect("a prompt is never empty"),
    "decoder_start_token_id": NoEffect("is for encoder-decoders"),
    "return_dict_in_generate": NoEffect("the result is always a `Generation`"),
    "early_stopping": NoEffect(_BEAMS_ONLY),
    "length_penalty": NoEffect(_BEAMS_ONLY),
    "is_assistant": NoEffect(_ASSISTANT),
    "num_assistant_tokens": NoEffect(_ASSISTANT),
    "num_assistant_tokens_schedule": NoEffect(_ASSISTANT),
    "assistant_confidence_threshold": NoEffect(_ASSISTANT),
    "assistant_ensemble_weight": NoEffect(_ASSISTANT),
    "assistant_lookbehind": NoEffect(_ASSISTANT),
    "target_lookbehind": NoEffect(_ASSISTANT),
    "max_matching_ngram_size": NoEffect(_ASSISTANT),
    "transformers_version": NoEffect("says who wrote the file"),
}
"""Options that are not simply supported, by name."""
REFUSED = {name: entry for name, entry in OPTIONS.items() if isinstance(entry, Refused)}
NO_EFFECT = {name: entry.why for name, entry in OPTIONS.items() if isinstance(entry, NoEffect)}


def refusal(option: str, advice: str = "leave it out, or call generate without custom_generate") -> ConfigError:
    """The error for an option of transformers' `generate` that tree drafting does not support."""
    return ConfigError(f"tree drafting does not support {option}; {advice}")


def check_options(options: Mapping[str, Any], given: Iterable[str], served: Iterable[str]) -> None:
    """Refuse unknown options, and unsupported ones unless their value requests nothing.

    Args:
        options: the options of a text, defaults included.
        given: names of the options that the caller gave; the others come from a generation config.
        served: names of the supported options.

    Raises:
        ConfigError: an option is not supported, or does not exist; the message has an alternative or the nearest name.
    """
    served = set(served)
    given = set(given)
    for name, value in options.items():
        if name in served or name in NO_EFFECT:
            continue
        entry = REFUSED.get(name) or (Refused("leave it out") if hasattr(GenerationConfig(), name) else None)
        if entry is None:
            raise unknown("option", name, [*served, *NO_EFFECT])
        if not entry.accepts(value):
            raise refusal(show_option(name, value), entry.advice) if name in given else _adopted(name, value, entry)


def _adopted(name: str, value: Any, known: Refused) -> ConfigError:
    """The error for an unsupported default, which the caller can override."""
    neutral = known.neutral[0] if known.neutral else None
    return ConfigError(
        f"the generation config sets {show_option(name, value)}, which tree drafting does not support; "
        f"pass {name}={neutral!r} to generate without it, or remove it from generation_config.json"
    )


def show_option(name: str, value: Any) -> str:
    """An option with its value if that is short."""
    return f"{name}={value!r}" if isinstance(value, int | float | str) else name


def _same(value: object, neutral: object) -> bool:
    """Whether two values are equal, except that True is not 1."""
    plain = isinstance(value, int | float | str | list | dict)
    return plain and value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
