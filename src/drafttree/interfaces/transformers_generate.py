"""Tree drafting from inside transformers' own `generate`.

    speculate = drafttree.hf.generate(drafter="path/or/hub-name", policy="talon")
    model.generate(**inputs, custom_generate=speculate, tokenizer=tokenizer, streamer=streamer, stop_strings=["\\n\\n"])

transformers prepares everything as usual: generation config, stopping criteria, prompt, attention mask. drafttree
honours each of them, or refuses it by name. But before transformers calls a custom function, it drops the `tokenizer`,
which stop strings need, and the `streamer`, which then gets only the prompt. So the first call of
`drafttree.hf.generate` wraps the method of `GenerationMixin` that drops them. Other generation is unaffected.
"""

import functools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from transformers import (
    Cache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation.logits_process import LogitsProcessor
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from drafttree.constraints.processors import Constraint, processor_for_row
from drafttree.constraints.refusals import refusal
from drafttree.core.errors import ConfigError, ModelError
from drafttree.drafters import Drafter, LanguageModelDrafter
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.learned_state import LearnedState
from drafttree.engine.metrics import Metrics
from drafttree.engine.request import Request, RequestContext
from drafttree.interfaces.cache_exchange import cache_to_fill, check_cache, holds_rows, read_cache, write_cache
from drafttree.interfaces.prepared_inputs import (
    check_batch,
    check_config,
    check_inputs,
    eos_ids,
    image_inputs,
    left_padding,
    split_processors,
)
from drafttree.interfaces.score_rows import ScoreRows, score_rows, stack_rows
from drafttree.loading import (
    AutoDrafter,
    DrafterSource,
    FilesDrafter,
    GivenModel,
    LoadedTarget,
    MixedParts,
    OwnLayers,
    PolicyLike,
    VerifierLike,
    check_tokenizers,
    find_verifier,
    load_head,
    load_model,
    made_for,
    make_policy,
    parse_drafter,
    tokenizer_beside,
    unwrap,
)
from drafttree.loading.drafter_spec import DrafterSpec
from drafttree.loading.model_files import ModelFiles
from drafttree.loading.specs import default_policy
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.module.module_checks import input_device
from drafttree.models.module.module_inputs import CACHE_NAMES
from drafttree.models.validation import verify_once

__all__ = ["TreeGenerate", "generate"]

Placement = tuple[torch.dtype, torch.device]
"""Dtype and device of a model."""


def generate(
    drafter: DrafterSource | None,
    policy: PolicyLike | None = None,
    verifier: VerifierLike = "auto",
    grammar: Constraint | None = None,
) -> "TreeGenerate":
    """Make a function for transformers: `model.generate(..., custom_generate=drafttree.hf.generate(drafter=...))`.

    Reuse the function: it loads the drafter once.

    Args:
        drafter: the drafter, as for `drafttree.load`, but not "auto". If it is the name of a class, every call makes a
            new drafter.
        policy: the tree policy, as for `drafttree.load`.
        verifier: its name or class; "auto" is greedy without `do_sample` and coupled with it.
        grammar: a grammar that the texts must follow, made by `drafttree.grammar`. Its tokenizer is `tokenizer=` of
            `model.generate`, or else the one in the model's folder.

    Raises:
        ConfigError: the policy, one of its parameters, the verifier or the kind of drafter does not exist.
    """
    _keep_dropped_arguments()
    return TreeGenerate(drafter, policy, verifier, grammar)


CACHE_FIELD = next(name for name in CACHE_NAMES if name in GenerateDecoderOnlyOutput.__dataclass_fields__)
"""The name of the KV cache in transformers' output."""


class TreeGenerate:
    """A decoding method in the form that transformers calls.

    Greedy output equals that of stock `generate`, with every logits processor that depends only on the tokens so far
    and their scores. With `do_sample`, the seed of each prompt is drawn from torch's global generator; the coupled
    verifier's text depends only on seed and prompt, not on drafter and policy. Prompts of a batch run one after
    another. The model is left as it was; while it generates, nothing else should run it.

    Attributes:
        metrics: the metrics of the last call, one per prompt.
    """

    def __init__(
        self,
        drafter: DrafterSource | None,
        policy: PolicyLike | None,
        verifier: VerifierLike,
        grammar: Constraint | None = None,
    ) -> None:
        self.metrics: list[Metrics] = []
        self._drafter_spec = parse_drafter(drafter)
        if isinstance(self._drafter_spec, AutoDrafter):
            raise ConfigError("name the drafter: 'auto' is for drafttree.load, which knows the target's name")
        self._verifier = find_verifier(verifier)
        self._policy = None if policy is None else make_policy(policy)
        self._grammar = grammar
        self._loaded: dict[Placement, Drafter] = {}
        self._heads: WeakKeyDictionary[PreTrainedModel, tuple[Placement, Drafter]] = WeakKeyDictionary()
        self._learned: WeakKeyDictionary[PreTrainedModel, tuple[Placement, LearnedState]] = WeakKeyDictionary()
        self._checked_tokenizers: WeakSet[PreTrainedModel] = WeakSet()

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        streamer: BaseStreamer | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Generate; the arguments are what transformers has prepared.

        Raises:
            ConfigError: tree drafting cannot honour an option; the message names it.
            ContextError: the prompt and the new tokens exceed the model's context.
            ModelError: the target or the drafter cannot be loaded, or cannot verify a tree.
            TokenizerMismatch: the target and the drafter have different tokenizers.
        """
        prompts = _prepare(input_ids, logits_processor, stopping_criteria, generation_config, streamer, model_kwargs)
        filled_cache = prompts.filled_cache
        self.metrics = []
        rows = []
        recorders = []
        with self._decoder(model, tokenizer, eos_ids(generation_config)) as decoder:
            check_cache(prompts.cache, input_ids, prompts.padding, _reads_hidden(decoder.drafter))
            for ids, padding_size, options in zip(input_ids, prompts.padding, prompts.options, strict=True):
                request = decoder.new_request(
                    prompts.prompt_of(ids[padding_size:].tolist()),
                    RequestContext(
                        padding=ids[:padding_size].tolist(),
                        stopping_criteria=stopping_criteria,
                        make_recorder=partial(score_rows, generation_config),
                    ),
                    grammar=self._grammar,
                    **options,
                )
                read_cache(prompts.cache, request, decoder.target.rope_switch)
                _run(decoder, request, streamer)
                rows.append(torch.cat((ids[:padding_size], ids.new_tensor(request.tokens))))
                recorders.append(request.text.recorder)
                self.metrics.append(request.metrics)
                filled_cache = write_cache(request, filled_cache, decoder.target.rope_switch, model.config)
        if streamer is not None:
            streamer.end()
        return _output(rows, recorders, filled_cache, generation_config)

    @contextmanager
    def _decoder(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, eos: list[int]
    ) -> Iterator[Decoder]:
        """Context manager: a decoder that uses the model in place; on exit, the model is as it was."""
        if self._grammar and tokenizer is None:
            tokenizer = tokenizer_beside(model)
        with ExitStack() as undo:
            target = undo.enter_context(_target_in_place(model))
            drafter = self._drafter(self._drafter_spec, LoadedTarget(target, tokenizer), model, undo)
            grammar_tokenizer = tokenizer if self._grammar else None
            learned_state = self._learned_state(model)
            policy = self._policy or default_policy(self._verifier, drafter)
            yield Decoder(target, drafter, policy, self._verifier, grammar_tokenizer, eos, learned=learned_state)

    def _learned_state(self, model: PreTrainedModel) -> LearnedState:
        """What earlier calls learned about a model; empty if its dtype or device has changed since."""
        placement = model.dtype, input_device(model)
        if model not in self._learned or self._learned[model][0] != placement:
            self._learned[model] = placement, LearnedState()
        return self._learned[model][1]

    def _drafter(
        self, spec: DrafterSpec, target: LoadedTarget, model: PreTrainedModel, undo: ExitStack
    ) -> Drafter | None:
        """The drafter of a call; None for plain decoding.

        Args:
            spec: the parsed source of the drafter.
            target: the target.
            model: the target's module.
            undo: restores a loaded drafter model when the call ends.

        Raises:
            ConfigError: a loaded drafter is on another device than the model.
            ModelError: the drafter cannot be loaded, or does not fit the model.
            TokenizerMismatch: a language model has another tokenizer.
        """
        match spec:
            case MixedParts(model=model_spec):
                model_drafter = self._drafter(model_spec, target, model, undo)
                assert model_drafter
                return spec.around(model_drafter, target.model)
            case GivenModel(model=origin):
                drafter = self._drafter_in_place(origin, model, undo)
            case FilesDrafter(files=origin):
                drafter = self._load(origin, model)
            case OwnLayers(source=name):
                raise ModelError(f"{name!r} is not a model; give an embedded name, a folder or a hub name")
            case _:
                return spec.build(target)
        if model not in self._checked_tokenizers and isinstance(drafter, LanguageModelDrafter):
            check_tokenizers(target.tokenizer or tokenizer_beside(model), tokenizer_beside(origin))
            self._checked_tokenizers.add(model)
        return drafter

    def _drafter_in_place(self, source: PreTrainedModel, model: PreTrainedModel, undo: ExitStack) -> Drafter:
        """The drafter of a loaded model, which is used in place until `undo`.

        Raises:
            ConfigError: the loaded drafter is on another device than the model.
        """
        drafter_device = input_device(source)
        model_device = input_device(model)
        if drafter_device != model_device:
            raise ConfigError(f"the drafter is on {drafter_device}, the model on {model_device}; move one of them")
        _restore_training_mode(source, undo)
        if paired_drafter := made_for(source, model):
            return paired_drafter
        return LanguageModelDrafter(undo.enter_context(_target_in_place(source)))

    def _load(self, files: ModelFiles, model: PreTrainedModel) -> Drafter:
        """The drafter of a folder or hub name, loaded at its first use with the model's dtype and device.

        A draft head is made for one model; other drafters are shared by all models of a dtype and device.
        """
        placement = (model.dtype, input_device(model))
        if model in self._heads and self._heads[model][0] == placement:
            return self._heads[model][1]
        if placement not in self._loaded:
            if head := load_head(files, model):
                self._heads[model] = placement, head
                return head
            self._loaded[placement] = LanguageModelDrafter(TargetModel(load_model(files, *placement), choose_backend))
        return self._loaded[placement]


def _reads_hidden(drafter: Drafter | None) -> bool:
    return drafter is not None and bool(drafter.hidden_layers)


class _Prompts(NamedTuple):
    """The checked arguments of a call.

    Attributes:
        padding: per prompt, the number of padding tokens on its left.
        options: per prompt, options of `Decoder.new_request`.
        cache: the KV cache that transformers passes; None for none.
        filled_cache: the cache to write the rows of the text to; None for none.
        images: inputs of the model for the images of the only prompt; empty without images.
    """

    padding: list[int]
    options: list[dict[str, Any]]
    cache: Cache | None
    filled_cache: Cache | None
    images: Mapping[str, Any]

    def prompt_of(self, tokens: list[int]) -> Any:
        """The prompt with these tokens, as `Decoder.new_request` takes it."""
        return {"input_ids": tokens, **self.images} if self.images else tokens


def _prepare(
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    config: GenerationConfig,
    streamer: BaseStreamer | None,
    model_kwargs: Mapping[str, Any],
) -> _Prompts:
    """Check the arguments of a call, and turn them into options of `Decoder.new_request`.

    Raises:
        ConfigError: an argument cannot be honoured; the message names it.
    """
    check_config(config)
    images = image_inputs(input_ids, model_kwargs)
    check_inputs(input_ids, {name: value for name, value in model_kwargs.items() if name not in images})
    check_batch(len(input_ids), stopping_criteria, streamer)
    processors, sampling = split_processors(logits_processor, bool(config.do_sample))
    positions = None if images else model_kwargs.get("position_ids")  # those of images are the model's own
    padding = left_padding(input_ids, model_kwargs.get("attention_mask"), positions)
    cache = next((model_kwargs[name] for name in CACHE_NAMES if name in model_kwargs), None)
    if images and holds_rows(cache):
        raise refusal("past_key_values with images", "leave one of them out")
    filled_cache = cache_to_fill(cache, padding, config)
    max_length = stopping_criteria.max_length or config.max_length
    options = _options(len(input_ids), processors, sampling, max_length - input_ids.shape[1])
    return _Prompts(padding, options, cache, filled_cache, images)


def _options(
    count: int, processors: list[LogitsProcessor], sampling: dict[str, Any], max_new_tokens: int
) -> list[dict[str, Any]]:
    """Options of `Decoder.new_request` for each prompt; with `do_sample`, their seeds are drawn here.

    Args:
        count: the number of prompts.
        processors: logits processors of the whole batch.
        sampling: sampling options; empty without `do_sample`.
        max_new_tokens: the most new tokens per prompt.
    """
    seeds = torch.randint(2**63 - 1, (count,)).tolist() if sampling else [0] * count
    options = []
    for row, seed in enumerate(seeds):
        row_processors = LogitsProcessorList(processor_for_row(processor, row) for processor in processors)
        row_options = {"logits_processor": row_processors, "max_new_tokens": max_new_tokens, "seed": seed}
        options.append(row_options | sampling)
    return options


@functools.cache
def _keep_dropped_arguments() -> None:
    """Have transformers pass its tokenizer and streamer on to a `TreeGenerate`."""
    extract = getattr(GenerationMixin, "_extract_generation_mode_kwargs", None)
    if extract is None:
        raise ConfigError("drafttree.hf does not know this version of transformers; install one it was tested with")

    @functools.wraps(extract)
    def extract_and_keep(self, custom_generate, kwargs, synced_gpus, assistant_model, streamer):
        if not isinstance(custom_generate, TreeGenerate):
            return extract(self, custom_generate, kwargs, synced_gpus, assistant_model, streamer)
        assistant_fields = {
            "assistant_model": assistant_model,
            "assistant_tokenizer": kwargs.get("assistant_tokenizer"),
        }
        for name, value in {**assistant_fields, "synced_gpus": synced_gpus}.items():
            if value:
                raise refusal(name)
        passed_kwargs = {"tokenizer": kwargs.pop("tokenizer", None), "streamer": streamer}
        mode_kwargs = extract(self, custom_generate, kwargs, synced_gpus, assistant_model, streamer)
        return mode_kwargs | {name: value for name, value in passed_kwargs.items() if value is not None}

    GenerationMixin._extract_generation_mode_kwargs = extract_and_keep


@contextmanager
def _target_in_place(module: PreTrainedModel) -> Iterator[TargetModel]:
    """Context manager: a model as `TargetModel`, in evaluation mode; on exit, it is as it was.

    Raises:
        ModelError: the model has an adapter outside its layers, or it cannot verify a tree.
    """
    prepare = vars(module).get("prepare_inputs_for_generation")  # peft replaces this method while its own generate runs
    unwrap(getattr(prepare, "__self__", module))
    with ExitStack() as undo:
        model = TargetModel(module, verify_once)
        undo.callback(model.release)
        yield model


def _restore_training_mode(module: PreTrainedModel, undo: ExitStack) -> None:
    """Let `undo` restore the training mode of the submodules that have it now."""
    training_modules = [submodule for submodule in module.modules() if submodule.training]

    def restore() -> None:
        for submodule in training_modules:
            submodule.training = True

    undo.callback(restore)


def _run(decoder: Decoder, request: Request, streamer: BaseStreamer | None) -> None:
    """Generate the text of one prompt, and stream it token by token."""
    while not request.text.finish_reason:
        token_count = len(request.tokens)
        decoder.step(request)
        if streamer is not None:
            for token in request.tokens[token_count:]:
                streamer.put(torch.tensor([token]))


def _output(
    rows: list[Tensor], recorders: list[ScoreRows | None], cache: Cache | None, config: GenerationConfig
) -> Tensor | GenerateDecoderOnlyOutput:
    """The value that transformers returns: token ids `[batch, length]`, or its output class if the config asks for it.

    Args:
        rows: per prompt, its token ids and those of its text.
        recorders: per prompt, the recorder of its scores and logits; None for none.
        cache: the filled KV cache; None for none.
        config: the generation config.
    """
    sequences = _stack(rows, config)
    if not config.return_dict_in_generate:
        return sequences
    outputs: Any = {CACHE_FIELD: cache, **stack_rows(recorders, config)}
    return GenerateDecoderOnlyOutput(sequences=sequences, **outputs)  # pyright: ignore[reportArgumentType]


def _stack(rows: list[Tensor], config: GenerationConfig) -> Tensor:
    """Rows of different lengths as one tensor `[batch, length]`, shorter ones padded on the right."""
    pad_tensor = getattr(config, "_pad_token_tensor", None)
    pad_token = 0 if pad_tensor is None else int(pad_tensor)
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_token)
