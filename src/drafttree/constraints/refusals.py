"""The options of transformers' `generate` that are refused by name, and those that have no effect here.

`docs/options.md` is made from these tables; every field of `GenerationConfig` that is served nowhere is in one of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig

from drafttree.core.errors import ConfigError, unknown


@dataclass(frozen=True)
class Refused:
    """An option that tree drafting cannot serve.

    Attributes:
        advice: what to do instead.
        neutral: values besides None and False that ask for nothing, so they are accepted.
    """

    advice: str
    neutral: tuple[Any, ...] = ()

    def accepts(self, value: object) -> bool:
        """True for a value that asks for nothing."""
        return value is None or value is False or any(value is each or _same(value, each) for each in self.neutral)


_BEAMS = "beam search keeps several texts, a draft tree belongs to one; leave it out"
_ASSISTED = "the drafter is an argument of drafttree.load"
_STORED = "every request keeps its own KV cache on the model's device; leave it out"
_ENCODER = "its processor compares every text with the prompt of its row; leave it out"
_NEGATIVE = "guidance needs a second pass per token, of another prompt; leave it out"
_HIDDEN = "the layers' outputs of a draft tree are not kept; run the model on the text"
_TOKENS = "give the prompt first, as text, token ids or all that a tokenizer returns: generate(tokenizer(text))"

REFUSED: dict[str, Refused] = {
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
    "past_key_values": Refused("give the whole prompt; caches go on with custom_generate=drafttree.hf.generate(...)"),
    "streamer": Refused("iterate over Decoder.stream"),
    "tokenizer": Refused("give it to drafttree.load or to the Decoder"),
    "custom_generate": Refused("it is for transformers' own generate; leave it out"),
    "synced_gpus": Refused("the model runs on one device; leave it out"),
    "inputs": Refused(_TOKENS),
    "input_ids": Refused(_TOKENS),
    "inputs_embeds": Refused("give the prompt as text or token ids"),
    "attention_mask": Refused("every prompt is read without padding; leave it out"),
    "position_ids": Refused("every prompt begins at position 0; leave it out"),
}
"""What `Decoder.generate` refuses."""

_BEAMS_ONLY = "acts on beam search alone"
_ASSISTANT = "sets up transformers' own speculation"
_SPEED = "says how transformers runs the model, not what it writes"

NO_EFFECT: dict[str, str] = {
    "use_cache": "a KV cache is always used",
    "cache_config": _SPEED,
    "max_cache_len": _SPEED,
    "prefill_chunk_size": _SPEED,
    "low_memory": _SPEED,
    "compile_config": _SPEED,
    "disable_compile": _SPEED,
    "continuous_batching_config": _SPEED,
    "pad_token_id": "nothing is padded",
    "bos_token_id": "a prompt is never empty",
    "decoder_start_token_id": "is for encoder-decoders",
    "return_dict_in_generate": "the result is a `Generation` in any case",
    "early_stopping": _BEAMS_ONLY,
    "length_penalty": _BEAMS_ONLY,
    "is_assistant": _ASSISTANT,
    "num_assistant_tokens": _ASSISTANT,
    "num_assistant_tokens_schedule": _ASSISTANT,
    "assistant_confidence_threshold": _ASSISTANT,
    "assistant_ensemble_weight": _ASSISTANT,
    "assistant_lookbehind": _ASSISTANT,
    "target_lookbehind": _ASSISTANT,
    "max_matching_ngram_size": _ASSISTANT,
    "transformers_version": "says who wrote the file",
}
"""What `Decoder.generate` accepts though it changes no text, and why."""


def refusal(option: str, advice: str = "leave it out, or call generate without custom_generate") -> ConfigError:
    """Return the error for an option of transformers' `generate` that tree drafting cannot support."""
    return ConfigError(f"tree drafting does not support {option}; {advice}")


def check_options(options: Mapping[str, Any], given: Iterable[str], served: Iterable[str]) -> None:
    """Refuse unknown options, and unsupported ones unless their value asks for nothing.

    Args:
        options: the options of a text, defaults included.
        given: names of those that the caller gave; the others come from a generation config.
        served: names of the supported options.

    Raises:
        ConfigError: an option is not supported, with an alternative, or does not exist, with the nearest name.
    """
    served, given = set(served), set(given)
    for name, value in options.items():
        if name in served or name in NO_EFFECT:
            continue
        known = REFUSED.get(name) or (Refused("leave it out") if hasattr(GenerationConfig(), name) else None)
        if known is None:
            raise unknown("option", name, [*served, *NO_EFFECT])
        if not known.accepts(value):
            raise refusal(show_option(name, value), known.advice) if name in given else _adopted(name, value, known)


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
    return isinstance(value, int | float | str) and value == neutral and not isinstance(value, bool)
