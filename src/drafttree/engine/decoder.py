"""The decoder combines a target, a drafter, a tree policy and a verifier, and makes and advances requests."""

import math
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self, Unpack, cast, overload

from transformers import LogitsProcessorList, PreTrainedModel

from drafttree.constraints.options import ProcessorContext
from drafttree.constraints.processors import PathConstraints
from drafttree.core.autocast import refuse_autocast
from drafttree.core.cost_curve import CostCurve
from drafttree.core.counts import MAX_BATCH, check_count, is_token_ids
from drafttree.core.errors import ConfigError, InputError
from drafttree.core.randomness import Randomness, SeededRandomness, random_seed
from drafttree.core.sampling import Sampling
from drafttree.drafters.base import Drafter, sources_of
from drafttree.engine import compatibility
from drafttree.engine.batching.engine import SharedEngine
from drafttree.engine.batching.loop import BatchLoop
from drafttree.engine.drafting.acceptance_watch import HeadWatch
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.learned_state import LearnedState
from drafttree.engine.drafting.measure import TRIAL_COSTS, TRIAL_TEMPERATURE
from drafttree.engine.drafting.prices import Prices
from drafttree.engine.drafting.text_drafting import TextDrafting
from drafttree.engine.generation import Chunk, Fidelity, Generation, Logprobs
from drafttree.engine.generation_options import GenerationOptions, RequestOptions
from drafttree.engine.image_prompt import EncodedPrompt, ImageReader
from drafttree.engine.memory import KVMemory
from drafttree.engine.metrics import Metrics, TextRound
from drafttree.engine.prefixes import PrefixCache
from drafttree.engine.request import Request, RequestContext, RoundObserver, TextStream, check_observer
from drafttree.engine.round_loop import RoundLoop
from drafttree.engine.target_lock import lock_of
from drafttree.engine.task import Task
from drafttree.engine.written_text import StoppingText, WrittenText
from drafttree.images.processor import PreparedImages
from drafttree.images.prompt_images import PromptImages, media_inputs
from drafttree.models import Model, TargetModel
from drafttree.models.tensor_parallel import of_first_process
from drafttree.policies.base import TextContext, TreePolicy
from drafttree.policies.chain import Chain
from drafttree.text.chat import Message, image_parts, is_conversation, without_images
from drafttree.text.control_tokens import START
from drafttree.text.detokenizer import Detokenizer
from drafttree.text.prompt import Prompt, check_room, encode, is_batch
from drafttree.verifiers import Verifier

TREE_HEADROOM = 64
"""The most rows that a KV cache has for tree nodes beyond the limit of the text."""


class PartFinder(Protocol):
    """Finds a policy, drafter or verifier from a user's specification, with the errors of `drafttree.load`.

    The engine does not know the names of methods. `drafttree.load` gives its decoders a finder that does.
    """

    def policy(self, spec: Any) -> TreePolicy:
        """Return the policy for a specification, a class or an object."""
        ...

    def drafter(self, spec: Any, target: Model, tokenizer: Any) -> Drafter | None:
        """Return the drafter for a name, a folder, a model, a class or an object; None for plain decoding."""
        ...

    def verifier(self, spec: Any) -> type[Verifier] | None:
        """Return the verifier for a name or a class; None for "auto"."""
        ...


class Decoder:
    """Generates texts with a target, a drafter, a tree policy and a verifier. `drafttree.load` makes one.

    As a context manager, it calls `close` on exit. Threads and engines may share a decoder and its target; they then
    take turns, round by round.

    Args:
        target: the model to generate with.
        drafter: the drafter; None for plain decoding, which uses the same loop.
        policy: the tree policy.
        verifier: the verifier; None takes `Greedy` at temperature 0 and `Coupled` above it.
        tokenizer: a transformers tokenizer; None to work with token ids only.
        eos: token ids that end a text.
        defaults: default options of `generate`. `drafttree.load` takes those of the model's generation config.
        prefixes: keeps KV rows of earlier texts for `reuse_prefix`; None makes a new one.
        learned: costs, and what policies have learned from earlier texts; None starts anew.
        parts: resolves the arguments of `with_policy`, `with_drafter` and `with_verifier`. The one that
            `drafttree.load` passes resolves names too. None accepts objects only.

    Attributes:
        defaults: as given; read-only.
        prefixes: as given; `prefixes.max_tokens` limits its memory and `prefixes.clear()` frees it.
        learned: as given.
        parts: as given.
        image_reader: as given.
        loop: advances the decoder's requests.

    Raises:
        ConfigError: if an argument is of a wrong type, policy and verifier are not proven lossless together, or the
            verifier cannot serve a sharded target.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None = None,
        policy: TreePolicy | None = None,
        verifier: type[Verifier] | None = None,
        tokenizer=None,
        eos: Sequence[int] = (),
        defaults: Mapping[str, Any] | None = None,
        prefixes: PrefixCache | None = None,
        learned: LearnedState | None = None,
        parts: PartFinder | None = None,
        image_reader: ImageReader | None = None,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.policy = Chain() if policy is None else policy
        self.verifier = verifier
        compatibility.check_kinds(self.policy, drafter, verifier)
        if verifier is not None:
            compatibility.check(self.policy, verifier)
        compatibility.check_sharded(target, verifier)
        if tokenizer is not None and not hasattr(tokenizer, "decode"):
            raise ConfigError(f"tokenizer is {tokenizer!r}; give one of transformers, as from_pretrained returns")
        if not is_token_ids(eos):
            raise ConfigError(f"eos is {eos!r}; give a list of token ids")
        if not isinstance(defaults, Mapping | None):
            raise ConfigError(f"defaults is {defaults!r}; give options of generate by their names")
        self.tokenizer = tokenizer
        self.eos = tuple(eos)
        self.defaults: Mapping[str, Any] = MappingProxyType(dict(defaults or {}))
        self.prefixes = PrefixCache() if prefixes is None else prefixes
        self.learned = LearnedState() if learned is None else learned
        self.parts = parts
        self.image_reader = image_reader
        self.loop = RoundLoop(target, drafter, self.prefixes, self._context)
        self._shared_engine = SharedEngine()

    def __repr__(self) -> str:
        verifier = self.verifier.__name__ if self.verifier else "auto"
        return f"Decoder({self.target!r}, drafter={self.drafter!r}, policy={self.policy!r}, verifier={verifier})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the KV rows of earlier texts, and restore the mode that a loaded target was in.

        The decoder can still be used afterwards. As a context manager it calls this on exit.
        """
        self.prefixes.clear()
        if isinstance(self.target, TargetModel):
            self.target.release()

    def __reduce_ex__(self, protocol: object) -> Any:
        raise ConfigError(
            "a Decoder is not pickled or copied, since it holds a running model; call drafttree.load where another is "
            "needed, and with_policy, with_drafter or with_verifier for one that differs"
        )

    @property
    def fidelity(self) -> Fidelity:
        """Whether texts follow the target's distribution, and if not, why."""
        return Fidelity.of(self.target, self.verifier)

    def plain(self) -> "Decoder":
        """Return the same decoder without drafts, not even those that a grammar forces: the baseline of speed-ups."""
        return self.with_drafter(None).with_defaults(speculate=False)

    def with_policy(self, policy: str | TreePolicy | type[TreePolicy]) -> "Decoder":
        """Return the same decoder with another tree policy, given as for `drafttree.load`, such as "talon".

        Raises:
            ConfigError: if the policy or a parameter does not exist, a value is out of range, the policy is not proven
                lossless with the verifier, or it is a file of a tuned policy, which only `drafttree.load` takes.
        """
        return self._with(policy=self.parts.policy(policy) if self.parts else policy)

    def with_drafter(self, drafter: str | Path | PreTrainedModel | Drafter | type[Drafter] | None) -> "Decoder":
        """Return the same decoder with another drafter, given as for `drafttree.load`, such as "embedded-mtp".

        The policy stays the same. None and "none" mean no drafter. Any other drafter removes a default
        `speculate=False`, which `plain` sets.

        Raises:
            ConfigError: if this is not a drafter, or does not take these parameters.
            ModelError: if a model or head cannot be loaded or does not fit the target.
            TokenizerMismatch: if a language model has less than a third of the target's tokens.
        """
        new_drafter: Any = self.parts.drafter(drafter, self.target, self.tokenizer) if self.parts else drafter
        if new_drafter is self.drafter:
            return self
        defaults = {name: value for name, value in self.defaults.items() if new_drafter is None or name != "speculate"}
        return self._with(drafter=new_drafter, learned=None, defaults=defaults)

    def with_target(self, target: Model) -> "Decoder":
        """Return the same decoder with another target, which must have the same vocabulary."""
        return self._with(target=target, learned=None)

    def with_costs(self, costs: CostCurve) -> "Decoder":
        """Return the same decoder with a given cost curve instead of a measured one.

        Raises:
            ConfigError: if `costs` is not a `CostCurve`.
        """
        if not isinstance(costs, CostCurve):
            raise ConfigError(
                f"costs is {type(costs).__name__}; give a CostCurve, such as Generation.costs or Decoder.costs()"
            )
        return self._with(learned=self.learned.with_costs(costs))

    def with_verifier(self, verifier: str | type[Verifier] | None) -> "Decoder":
        """Return the same decoder with another verifier: a class, a name such as "traversal", or None or "auto".

        Raises:
            ConfigError: if the verifier does not exist, or is not proven lossless with the policy.
        """
        return self._with(verifier=self.parts.verifier(verifier) if self.parts else verifier)

    def with_defaults(self, **options: Unpack[GenerationOptions]) -> "Decoder":
        """Return the same decoder with other default options of `generate`."""
        return self._with(defaults={**self.defaults, **options})

    def costs(self, *, greedy: bool = True) -> CostCurve:
        """Return the costs of target and drafter for greedy or sampled texts, and measure them if they are not known.

        Raises:
            ConfigError: if there is no drafter, `torch.autocast` is active, or the target is sharded over processes and
                the costs were not given.
        """
        refuse_autocast(self.target.device)
        if self.drafter is None:
            raise ConfigError("without a drafter there are no costs to weigh; name a drafter")
        if not self.learned.given:
            compatibility.refuse_sharded(self.target, "costs, which the policy auto weighs, are measured")
        rounds = partial(self._trial, 0.0 if greedy else TRIAL_TEMPERATURE)
        return self.learned.costs(self.target, self.drafter, rounds, greedy=greedy)

    def _trial(
        self, temperature: float, drafter: Drafter | None, policy: TreePolicy, prompt: list[int], length: int
    ) -> Iterator[TextRound]:
        """Generate a text with another drafter and policy, and yield its rounds for `measure_costs`."""
        # the prompt of a trial is not natural text, so it must not test heads
        learned_state = LearnedState(TRIAL_COSTS, tests_heads=False)
        decoder = self._with(drafter=drafter, policy=policy, verifier=None, learned=learned_state)
        request = decoder.new_request(prompt, temperature=temperature, ignore_eos=True, max_new_tokens=length, seed=0)
        while not request.text.finish_reason:
            decoder.step(request)
            yield request.metrics.rounds[-1]

    def _with(self, **changes: Any) -> "Decoder":
        arguments = {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "loop"}
        return Decoder(**{**arguments, **changes})

    @overload
    def generate(  # pyright: ignore[reportOverlappingOverload]
        self,
        prompt: Prompt,
        *,
        max_batch: int = MAX_BATCH,
        observer: RoundObserver | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        *,
        max_batch: int = MAX_BATCH,
        observer: RoundObserver | None = None,
        **options: Unpack[GenerationOptions],
    ) -> list[Generation]: ...

    def generate(
        self,
        prompt: Any = None,
        *,
        max_batch: int = MAX_BATCH,
        observer: RoundObserver | None = None,
        **options: Unpack[GenerationOptions],
    ):
        """Generate a text from a prompt, or from each of a list of prompts.

        Args:
            prompt: text, token ids, or a conversation (a list of messages such as `{"role": "user", "content": "Hi"}`,
                rendered by the tokenizer's chat template), or a list of these. Token ids may be a list, a tensor, an
                array or the whole output of a tokenizer.
            max_batch: maximum number of texts of a list that are generated at the same time.
            observer: is called for each round of each text.
            **options: see `drafttree.engine.generation_options.GenerationOptions`. Omitted options are taken from
                `defaults`.

        Returns:
            One `Generation`, or a list of them for a list of prompts.

        Raises:
            InputError: if a prompt is empty, or is text although the decoder has no tokenizer. For a list, the message
                names the prompt.
            ContextError: if a prompt and `max_new_tokens` exceed the model's context.
            ConfigError: if an option is unknown, out of range, or not supported by tree drafting, `observer` lacks a
                method, or `torch.autocast` is active.
        """
        check_count("max_batch", max_batch)
        check_observer(observer)
        if isinstance(prompt, list | tuple) and not prompt:
            RequestOptions.merge(self.defaults, options)
            return []
        prompt = getattr(prompt, "tolist", lambda: prompt)()
        if not is_batch(prompt):
            return self._finish(self.new_request(prompt, RequestContext(observer), **options))
        context = RequestContext(observer)
        requests = []
        for number, single_prompt in enumerate(prompt, start=1):
            try:
                requests.append(self.prepare(single_prompt, context, **options))
            except InputError as error:
                raise type(error)(f"prompt {number} of {len(prompt)}: {error}") from None
        with lock_of(self.target):
            loop = self.batch_loop(max_batch)
        return loop.write(requests)

    def stream(
        self,
        prompt: Prompt | None = None,
        *,
        observer: RoundObserver | None = None,
        **options: Unpack[GenerationOptions],
    ) -> TextStream:
        """Generate from one prompt, and yield the tokens of each round. Arguments and errors are those of `generate`.

        After the last chunk, the stream's `result` is the whole `Generation`. Closing the stream ends the text. For
        Ctrl-C see `stream_request`.
        """
        if is_batch(prompt):
            raise InputError("stream takes one prompt; call it for each of a list, or call generate")
        check_observer(observer)
        return self.stream_request(self.new_request(prompt, RequestContext(observer), **options))

    async def astream(
        self,
        prompt: Prompt | None = None,
        *,
        observer: RoundObserver | None = None,
        **options: Unpack[GenerationOptions],
    ) -> AsyncIterator[Chunk]:
        """Like `stream`, for `async for`. Texts streamed at the same time share the passes of an `Engine`.

        Closing the iterator ends the text.
        """
        if is_batch(prompt):
            raise InputError("astream takes one prompt; call it for each of a list, or call generate")
        async with self._shared_engine.use(self) as engine:
            handle = engine.submit(prompt, observer=observer, **options)
            try:
                async for chunk in handle:
                    yield chunk
            finally:
                handle.cancel()

    def new_request(
        self, prompt: Prompt | None = None, context: RequestContext | None = None, **options: Unpack[GenerationOptions]
    ) -> Request:
        """Check a prompt and its options, and make a request for a text that is written alone with `step`.

        This runs a model only if the policy needs costs that have not been measured. Options and errors are those of
        `generate`.

        Args:
            prompt: as for `generate`.
            context: an observer of the rounds, and other things that are not options.
            **options: as for `generate`.
        """
        request = self._prepare(prompt, options, context or RequestContext(), is_alone=True)
        self.open(request)
        if costs := request.drafting.costs:
            controller = self._new_controller(Prices(costs, frozen=True), None, self.learned.head_watch_of(request))
            if last_controller := self.learned.controller_of(request):
                controller.begin_with(last_controller)
            request.drafting.follow(controller)
        return request

    def prepare(
        self,
        prompt: Prompt | EncodedPrompt | None = None,
        context: RequestContext | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Request:
        """Check a prompt and its options, and make a request for a `batch_loop`, which opens it.

        No model runs. The prompt may be encoded already; other arguments and errors are those of `new_request`.
        """
        return self._prepare(prompt, options, context or RequestContext(), is_alone=False)

    def randomness(self, seed: int) -> Randomness:
        """Return the random numbers of a text with this seed."""
        return SeededRandomness(seed, self.target.vocab_size, self.target.device)

    def open(self, request: Request) -> None:
        """Give a request an empty KV cache and a session of the drafter."""
        with lock_of(self.target):
            self.loop.open(request)

    def step(self, request: Request) -> int:
        """Advance a request by one round. The first round also reads the prompt.

        Returns:
            The number of committed tokens, 0 if the text had ended before.
        """
        if request.text.finish_reason:
            return 0
        with lock_of(self.target):
            start = time.perf_counter()
            if not request.metrics.rounds:
                self.loop.read_prompt(request)
            (text_round,) = self.loop.step([request]).rounds
        if isinstance(text_round, Exception):
            try:
                raise text_round
            finally:
                del text_round  # else the error and this frame would keep each other alive
        request.metrics.record(text_round, time.perf_counter() - start)
        if request.drafting.session:
            groups = [(text_round.source, text_round.widths)] if text_round.widths else []
            request.drafting.controller.learn(1, text_round.nodes, text_round.accepted + 1, groups)
        return text_round.committed

    def batch_loop(
        self,
        max_batch: int,
        *,
        max_kv_tokens: int | None = None,
        budget: int | None = None,
        max_token_gap: float = math.inf,
    ) -> BatchLoop:
        """Make a loop that runs many requests at once. It shares what it learns with the decoder's other loops.

        Args:
            max_batch: maximum number of requests at the same time.
            max_kv_tokens: as for `Engine`.
            budget: as for `Engine`.
            max_token_gap: as for `Engine`; by default a round reads as many tokens of prompts as fit.

        Raises:
            ConfigError: if the target is sharded over processes, or `max_kv_tokens` is not a whole number of at least
                1.
        """
        compatibility.refuse_sharded(self.target, "the drafts of many requests at once are budgeted")
        key = self.policy, self.verifier, budget
        controller = self.learned.controller(key, partial(self._batch_controller, budget))
        memory = KVMemory(self.target, self.prefixes, max_kv_tokens)
        return BatchLoop(self.loop, controller, self.learned.remember, max_batch, memory, max_token_gap)

    def _batch_controller(self, budget: int | None) -> Controller:
        """Make the controller of batch loops. Its prices follow the clock unless costs were given."""
        fixed_costs = self.learned.given
        prices = Prices(self.costs() if self.drafter else fixed_costs, frozen=fixed_costs is not None)
        return self._new_controller(prices, budget, self.learned.head_watch)

    def _new_controller(self, prices: Prices, budget: float | None, head_watch: HeadWatch | None) -> Controller:
        models = sources_of(self.drafter) if self.drafter else ()
        heads = [source for source, model in enumerate(models) if model.hidden_layers]
        return Controller(prices, budget=budget, heads=heads, head_watch=head_watch)

    def _prepare(
        self,
        prompt: Prompt | EncodedPrompt | None,
        caller_options: GenerationOptions,
        context: RequestContext,
        *,
        is_alone: bool,
    ) -> Request:
        """Check a prompt and its options, and make a request.

        Args:
            prompt: as for `generate`.
            caller_options: the caller's options.
            context: what the caller gives besides prompt and options.
            is_alone: whether the text is written alone. In a batch, its trees may depend on the other texts.
        """
        refuse_autocast(self.target.device)
        options = RequestOptions.merge(self.defaults, caller_options)
        encoded = self._encode(prompt, options)
        self._check_prompt(encoded, options)
        limit = encoded.length + options.max_new_tokens(encoded.length)
        vocab = self.target.vocab_size
        eos = options.eos(self.eos, vocab)
        processors, sampling = options.processors(
            ProcessorContext(encoded.length, limit, eos, vocab, self.target.device)
        )
        verifier = self._new_verifier(sampling, options)
        self._check_reuse(options, verifier, is_alone=is_alone)
        constraints = self._new_constraints(processors, options, eos, context)
        is_text_of_seed = compatibility.is_text_of_seed(type(verifier))
        if is_alone and not is_text_of_seed:
            constraints.share_nothing()
        policy = self.policy.form_for(verifier.proposal, chain=verifier.chains_only) or self.policy
        task = Task(
            prompt=tuple(encoded.tokens),
            limit=limit,
            eos=frozenset(eos),
            capacity=limit + min(policy.budget, TREE_HEADROOM),
            policy=policy,
            verifier=verifier,
            randomness=self._new_randomness(verifier, of_seed=is_alone or is_text_of_seed),
            fidelity=self.fidelity,
            speculate=options.get("speculate", True),
            draft_temperature=float(options.get("draft_temperature", 1.0)),
            reuse_prefix=self._reuses_prefix(prompt, options, context, is_text_of_seed=is_text_of_seed),
            cache_salt=context.cache_salt,
            group=object() if context.group is None else context.group,
            images=encoded.images,
        )
        tests_heads = self.learned.tests_heads and _can_test_heads(options, processors, sampling)
        return Request(
            task=task,
            text=self._new_text(task, constraints, options, context),
            drafting=TextDrafting(task, self.learned.head_watch if tests_heads else None),
            metrics=Metrics(draft_weight_bytes=self.drafter.nbytes if self.drafter else 0),
            observer=context.observer,
            growth_observer=context.growth_observer,
        )

    def _encode(self, prompt: Prompt | EncodedPrompt | None, options: RequestOptions) -> EncodedPrompt:
        """Read a prompt: its token ids and its images. An encoded one is returned as it is."""
        if isinstance(prompt, EncodedPrompt):
            return prompt
        sanitize = options.get("sanitize_control_tokens", False)
        vocab = self.target.vocab_size
        if prepared_images := self._read_images(prompt):
            messages = without_images(cast(Sequence[Message], prompt))
            tokens = encode(
                *(messages, self.tokenizer, vocab, self.target.context),
                sanitize=sanitize,
                placeholders=prepared_images.placeholders,
                expand=partial(prepared_images.expand, mark=START),
            )
            return EncodedPrompt(tokens, prepared_images.of_tokens(tokens))
        tokens = encode(prompt, self.tokenizer, vocab, self.target.context, sanitize=sanitize)
        return EncodedPrompt(tokens, self._images(prompt, tokens))

    def _check_prompt(self, encoded: EncodedPrompt, options: RequestOptions) -> None:
        """Check that a prompt works with the options of its text, and leaves room for it."""
        if encoded.images:
            self._check_images(options)
            if encoded.images.end == encoded.length:
                raise InputError("the prompt ends with an image; give text behind it, as chat templates do")
        check_room(encoded.length, options.max_new_tokens(encoded.length), self.target.context)
        if options.get("max_time") is not None:
            compatibility.refuse_sharded(self.target, "max_time ends a text")
        if options.stop and self.tokenizer is None:
            raise ConfigError("stop strings need a tokenizer; give the decoder one")

    def _read_images(self, prompt: Any) -> PreparedImages | None:
        """Read the images in a conversation; None if it has none.

        Raises:
            InputError: the target reads no images, or one of them cannot be read.
        """
        images = image_parts(prompt)
        if not images:
            return None
        if self._image_token() is None:
            number, _ = images[0]
            raise InputError(f"message {number} has an image, and the target reads no images; send text alone")
        if self.image_reader is None:
            raise ConfigError("images need the model's processor; load the target by drafttree.load, from its folder")
        return self.image_reader.read(images)

    def _images(self, prompt: object, tokens: Sequence[int]) -> PromptImages | None:
        """The images that a processor of transformers has prepared, with the tokens that it returned; None for none.

        Raises:
            InputError: the target reads no images, or the prompt has audio or video.
        """
        inputs = media_inputs(prompt)
        if inputs is None:
            return None
        if (image_token := self._image_token()) is None:
            raise InputError(f"the target reads no images; leave out {', '.join(sorted(inputs))}")
        return PromptImages.of_inputs(inputs, tokens, image_token)

    def _image_token(self) -> int | None:
        """The token id that stands for a part of an image; None if the target reads no images."""
        return self.target.image_token if isinstance(self.target, TargetModel) else None

    def _check_images(self, options: RequestOptions) -> None:
        """Check that images work with options and target.

        Raises:
            ConfigError: an option or a property of the target does not work with images.
            ModelError: the target has recurrent layers.
        """
        if options.get("prompt_logprobs"):
            raise ConfigError("prompt_logprobs does not work with images; leave it out")
        if isinstance(self.target, TargetModel):
            compatibility.check_images(self.target)

    def _check_reuse(self, options: RequestOptions, verifier: Verifier, *, is_alone: bool) -> None:
        """Refuse the option `reuse_prefix` if a seed then might not repeat its text; warn of hidden state."""
        if options.get("reuse_prefix"):
            if is_alone:
                compatibility.check_reuse(type(verifier))
            compatibility.log_hidden_state(self.target)

    def _reuses_prefix(
        self,
        prompt: Prompt | EncodedPrompt | None,
        options: RequestOptions,
        context: RequestContext,
        *,
        is_text_of_seed: bool,
    ) -> bool:
        """Whether a text reuses KV rows of earlier texts: by its option, or else by default.

        In an engine, the default is the engine's. Outside, only conversations reuse rows, since these repeat their
        beginning. Prompt and seed alone must determine the text, and the target must not hide state.
        """
        if (option := options.get("reuse_prefix")) is not None:
            return option
        if options.get("prompt_logprobs"):
            return False  # they need a pass over the whole prompt
        if context.shares_prefixes is not None:
            return context.shares_prefixes
        return is_text_of_seed and is_conversation(prompt) and not compatibility.hides_state(self.target)

    def _new_text(
        self, task: Task, constraints: PathConstraints, options: RequestOptions, context: RequestContext
    ) -> WrittenText:
        """Make the empty text of a task."""
        prompt = [*task.prompt]
        vocab = self.target.vocab_size
        criteria = options.criteria if context.stopping_criteria is None else context.stopping_criteria
        new_tokens = task.limit - len(prompt)
        recorder = Logprobs.asked_for(options.get("logprobs"))
        return WrittenText(
            task=task,
            detokenizer=Detokenizer(
                self.tokenizer, prompt, options.stop, options.spelled_tokens(vocab), options.get("unstopped", ())
            ),
            stopping=StoppingText(criteria, [*context.padding, *prompt], new_tokens, self.target.device),
            constraints=constraints,
            recorder=context.make_recorder(task.verifier.sampling) if context.make_recorder else recorder,
            prompt_logprobs=Logprobs.asked_for(options.get("prompt_logprobs")),
        )

    def _new_verifier(self, sampling: Sampling, options: RequestOptions) -> Verifier:
        """Make the verifier of a text; its seed is random if the text samples and no seed was given."""
        if not sampling.greedy and options.get("seed") is None:
            seed = random_seed()
            seed = of_first_process(seed) if compatibility.is_sharded(self.target) else seed
            sampling = replace(sampling, seed=seed)
        verifier = self.verifier or compatibility.default_verifier(sampling)
        return verifier(sampling)

    def _new_constraints(
        self,
        processors: LogitsProcessorList,
        options: RequestOptions,
        eos: tuple[int, ...],
        context: RequestContext,
    ) -> PathConstraints:
        """Make the constraints of a text: its logits processors, and its grammar if it has one."""
        grammar = options.get("grammar")
        state = grammar.new_state(self.tokenizer, self.target.vocab_size, eos) if grammar else None
        return PathConstraints(processors, state, frozenset(eos), context.padding)

    def _new_randomness(self, verifier: Verifier, *, of_seed: bool) -> Randomness:
        """Make the randomness of a text: that of its seed, or one that no other text has."""
        seed = verifier.sampling.seed
        return self.randomness(seed if of_seed else self.learned.unshared_seed(seed))

    def _context(self, request: Request) -> TextContext:
        """Make the context that a request's policy gets when its text begins."""
        policy = request.task.policy
        verifier = request.task.verifier
        weighs = request.drafting.session is not None and policy.uses_costs
        costs = self.learned.costs_of(verifier, self.costs(greedy=verifier.sampling.greedy)) if weighs else None
        return TextContext(costs, self.learned.policy_state(policy, verifier))

    def _finish(self, request: Request) -> Generation:
        with self.prefixes.storing(request), self.learned.learning(request):
            while not request.text.finish_reason:
                self.step(request)
        return request.generation()

    def stream_request(self, request: Request) -> TextStream:
        """Advance a request to its end, and yield the tokens of each round.

        Ctrl-C yields a last chunk, "interrupted", with the text held back so far, and then raises KeyboardInterrupt.
        """
        return TextStream(request, self._chunks(request))

    def _chunks(self, request: Request) -> Generator[Chunk, None, None]:
        with self.prefixes.storing(request), self.learned.learning(request):
            while not request.text.finish_reason:
                token_count = len(request.tokens)
                try:
                    self.step(request)
                except KeyboardInterrupt:
                    request.end("interrupted")
                yield request.text.chunk(token_count)
                if request.text.finish_reason == "interrupted":
                    raise KeyboardInterrupt


def _can_test_heads(options: RequestOptions, processors: LogitsProcessorList, sampling: Sampling) -> bool:
    """Whether a text can test a head: no option may make tokens less likely than the target does."""
    is_free = not processors and not options.get("grammar")
    return is_free and sampling.temperature <= 1 and sampling.typical_p == 1
