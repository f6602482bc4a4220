"""The loop: draft a tree, score it in one target pass, verify it, commit the accepted path and the bonus token.

    prefill -> [ propose -> score -> verify -> commit ]*

`Decoder.step` is the only loop body; generating, streaming, benchmarks and the command line all drive it.
"""

import inspect
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Unpack, overload

import torch
from transformers import LogitsProcessorList

from drafttree.constraints.options import ProcessorContext, ProcessorOptions, check_names, make_processors
from drafttree.constraints.processors import Constraint, PathConstraints
from drafttree.core.errors import ConfigError, ContextError, InputError
from drafttree.core.randomness import SeededRandomness, random_seed
from drafttree.core.sampling import MIN_TEMPERATURE, Sampling
from drafttree.core.tree import DraftTree, Proposal, Verdict
from drafttree.drafters.base import Drafter, DraftSession, HiddenStates
from drafttree.engine import compatibility
from drafttree.engine.child_sampler import ChildSampler
from drafttree.engine.detokenizer import Detokenizer, stop_strings
from drafttree.engine.draft_logits import AdjustedDraft, Constrain
from drafttree.engine.metrics import Metrics
from drafttree.engine.request import Chunk, Generation, Request
from drafttree.engine.round_clock import RoundClock
from drafttree.engine.tree_growth import grow
from drafttree.models import Model, Output, prefill
from drafttree.policies.base import TreePolicy
from drafttree.policies.chain import Chain
from drafttree.verifiers import Coupled, Greedy, Verifier

TREE_HEADROOM = 64
SESSION_PARTS = ("root", "expand", "prefill", "commit", "passes", "seconds", "nbytes")
Prompt = str | Sequence[int]


class Decoder:
    """Any drafter, any tree policy, any verifier, over one target.

    Args:
        target: the model whose output is wanted.
        drafter: who proposes; None decodes plainly, by the same loop.
        policy: how the tree grows.
        verifier: what is accepted; None takes `Greedy` at temperature 0, above it `Coupled` where a seed is given and
            what accepts most on the policy's trees (`compatibility.default_verifier`) where none is.
        tokenizer: a transformers tokenizer, None to work on token ids alone.
        eos: token ids that end a text.

    Raises:
        ConfigError: policy and verifier are not proven lossless together.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter | None = None,
        policy: TreePolicy | None = None,
        verifier: type[Verifier] | None = None,
        tokenizer=None,
        eos: Sequence[int] = (),
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.policy = Chain() if policy is None else policy
        self.verifier = verifier
        if not isinstance(self.policy, TreePolicy):
            raise ConfigError(
                f"policy is {policy!r}; give an object such as drafttree.policies.Talon(), or its name to load"
            )
        if isinstance(drafter, type) or not (drafter is None or hasattr(drafter, "start")):
            raise ConfigError(f"drafter is {drafter!r}; give an object of drafttree.drafters, or its name to load")
        if not (verifier is None or (isinstance(verifier, type) and issubclass(verifier, Verifier))):
            raise ConfigError(f"verifier is {verifier!r}; give a class of drafttree.verifiers, or its name to load")
        if verifier is not None:
            compatibility.check(self.policy, verifier)
        self.tokenizer = tokenizer
        self.eos = tuple(eos)

    def plain(self) -> "Decoder":
        """The same decoder without speculation: the baseline every speed-up is measured against."""
        return self.with_drafter(None)

    def with_policy(self, policy: TreePolicy) -> "Decoder":
        """The same decoder growing its trees by another policy."""
        return Decoder(self.target, self.drafter, policy, self.verifier, self.tokenizer, self.eos)

    def with_drafter(self, drafter: Drafter | None) -> "Decoder":
        """The same decoder with another drafter."""
        return Decoder(self.target, drafter, self.policy, self.verifier, self.tokenizer, self.eos)

    @overload
    def generate(self, prompt: Prompt, **options) -> Generation: ...  # pyright: ignore[reportOverlappingOverload]

    @overload
    def generate(self, prompt: Sequence[Prompt], **options) -> list[Generation]: ...

    def generate(self, prompt, **options):
        """Generate from a prompt, or from each of a list of prompts.

        Args:
            prompt: text, token ids, or a list of either; tensors and arrays of token ids will do.
            **options: as for `start`.

        Returns:
            One `Generation`, or a list of them for a list of prompts. Ctrl-C ends the one under way with what it has
            and leaves out those not begun.

        Raises:
            InputError: a prompt is empty or needs a tokenizer that is not there.
            ContextError: a prompt and `max_new_tokens` exceed the model's context.
            ConfigError: an option is out of range.
        """
        prompt = prompt.tolist() if hasattr(prompt, "tolist") else prompt
        many = isinstance(prompt, list | tuple) and prompt and not isinstance(prompt[0], Integral)
        if not many:
            return self._finish(self.new_request(prompt, **options))
        ids = [self._encode(single) for single in prompt]
        for single in ids:
            self._check(single, options.get("max_new_tokens", 128))
        finished = []
        for single in ids:
            finished.append(self._finish(self.new_request(single, **options)))
            if finished[-1].finish_reason == "interrupted":
                break
        return finished

    def stream(self, prompt: Prompt, **options) -> Iterator[Chunk]:
        """Generate from one prompt, yielding what each round adds; arguments and errors as for `generate`.

        Closing the iterator ends the generation.
        """
        if isinstance(prompt, list | tuple) and prompt and not isinstance(prompt[0], Integral):
            raise InputError("stream takes one prompt; call it for each of a list, or call generate")
        return self.stream_request(self.new_request(prompt, **options))

    def new_request(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | None = None,
        stop: str | Sequence[str] | None = (),
        ignore_eos: bool = False,
        draft_temperature: float = 1.0,
        typical_p: float = 1.0,
        epsilon_cutoff: float = 0.0,
        eta_cutoff: float = 0.0,
        top_h: float = 0.0,
        logits_processor: LogitsProcessorList | None = None,
        grammar: Constraint | None = None,
        **generation: Unpack[ProcessorOptions],
    ) -> Request:
        """Check a prompt and its options and make the request that `step` advances; no model runs yet.

        Args:
            prompt: text or token ids.
            max_new_tokens: tokens to generate at most.
            temperature: 0 decodes greedily.
            top_k: keep the k most probable tokens; 0 keeps all.
            top_p: keep the most probable tokens up to this probability.
            min_p: drop tokens less probable than this share of the most probable one.
            seed: of the draws; None takes one from torch's global generator, so that texts differ as they do with
                transformers, and repeat after `torch.manual_seed`. A greedy text needs none.
            stop: strings that end the text; it is cut before them. Special tokens are no part of it.
            ignore_eos: go on past EOS tokens.
            draft_temperature: divides the drafter's logits before the policy looks at them. Below 1 policies trust
                the drafter more, which pays where it understates how often it is right; it never changes the law.
            typical_p: keep the tokens whose surprise is nearest the entropy, up to this probability.
            epsilon_cutoff: drop tokens less probable than this.
            eta_cutoff: as `epsilon_cutoff`, with a bound that falls with the entropy.
            top_h: keep the most probable tokens up to this share of the entropy; 0 keeps all.
            logits_processor: processors of transformers, applied at every node with the text up to that node. They
                must be functions of that text and the scores, and come after those of `generation`.
            grammar: what the text must look like, of `drafttree.grammar`.
            **generation: options of transformers by its names: repetition_penalty, no_repeat_ngram_size,
                min_new_tokens, bad_words_ids, sequence_bias ...; see `drafttree.constraints.options.ProcessorOptions`.

        Raises:
            InputError: the prompt is empty or needs a tokenizer that is not there.
            ContextError: the prompt and `max_new_tokens` exceed the model's context.
            ConfigError: an option is out of range, unknown, or nothing speculation can serve.
        """
        check_names(
            generation, inspect.signature(Decoder.new_request).parameters.keys() - {"self", "prompt", "generation"}
        )
        tokens = self._encode(prompt)
        self._check(tokens, max_new_tokens)
        stop = stop_strings(stop)
        if stop and self.tokenizer is None:
            raise ConfigError("stop strings need a tokenizer; give the decoder one")
        if not isinstance(draft_temperature, Real) or not MIN_TEMPERATURE <= draft_temperature < math.inf:
            raise ConfigError(
                f"draft_temperature is {draft_temperature!r}; it must be a number of at least {MIN_TEMPERATURE}"
            )
        given = 0 if seed is None else seed
        sampling = Sampling(temperature, top_k, top_p, min_p, given, typical_p, epsilon_cutoff, eta_cutoff, top_h)
        verifier = self.verifier or (Greedy if sampling.greedy else Coupled)
        if seed is None and not sampling.greedy:
            sampling = replace(sampling, seed=random_seed())
            verifier = self.verifier or compatibility.default_verifier(self.policy)
        limit = len(tokens) + max_new_tokens
        if grammar is not None and not hasattr(grammar, "new_state"):
            raise ConfigError(f"grammar is {grammar!r}; make one with drafttree.grammar.json_schema, regex or ebnf")
        if not isinstance(logits_processor, list | tuple | None):
            raise ConfigError(f"logits_processor is {logits_processor!r}; give a LogitsProcessorList")
        if grammar and ignore_eos:
            raise ConfigError("a grammar ends its text with an EOS token; leave out ignore_eos")
        eos = () if ignore_eos else self.eos
        setting = ProcessorContext(len(tokens), limit, eos, self.target.vocab_size, self.target.device)
        processors = make_processors(generation, logits_processor or (), setting)
        state = grammar.new_state(self.tokenizer, self.target.vocab_size, eos) if grammar else None
        capacity = limit + min(self.policy.budget, TREE_HEADROOM)
        return Request(
            tokens=tokens,
            prompt_length=len(tokens),
            limit=limit,
            eos=frozenset(eos),
            cache=self.target.new_cache(1, capacity),
            draft=self._start_draft(tokens, capacity),
            policy=self.policy,
            state=self.policy.init_state(),
            verifier=verifier(sampling),
            randomness=SeededRandomness(sampling.seed, self.target.vocab_size, self.target.device),
            text=Detokenizer(self.tokenizer, tokens, stop),
            constraints=PathConstraints(processors, state, frozenset(eos)),
            clock=RoundClock(self.target.device),
            draft_temperature=draft_temperature,
            metrics=Metrics(draft_weight_bytes=self.drafter.nbytes if self.drafter else 0),
        )

    def _start_draft(self, tokens: list[int], capacity: int) -> DraftSession | None:
        """The drafter's session for a prompt, if there is a drafter."""
        if self.drafter is None:
            return None
        session = self.drafter.start(tokens, capacity)
        if missing := [part for part in SESSION_PARTS if not hasattr(session, part)]:
            name = type(self.drafter).__name__
            raise ConfigError(f"{name}.start returns a session that lacks {', '.join(missing)}; see docs/writing.md")
        return session

    @torch.inference_mode()
    def step(self, request: Request) -> int:
        """Advance a request by one round and return how many tokens were committed."""
        begun = time.perf_counter()
        if not request.metrics.rounds:
            self.prefill(request)
        elif self._is_long(request) and not request.cache.long_rope:
            self._read_again(request)
        started = time.perf_counter()
        tree = self.propose(request)
        output = self.score(request, tree)
        with request.clock.verify:
            logits = output.logits
            if request.constraints:
                logits = request.constraints.score(request.tokens, tree, logits)
            verdict = request.verifier.verify(tree, logits, [request.randomness.at(len(request.tokens) - 1)])
        committed, accepted = self._commit(request, tree, verdict, output.hidden)
        now = time.perf_counter()
        turn = request.clock.round(committed, accepted, tree, request.draft, now - started)
        request.metrics.record(turn, now - begun)
        return committed

    def prefill(self, request: Request) -> None:
        """Read a new request's prompt, all but its last token, as target and as drafter."""
        request.cache.long_rope = self._is_long(request)
        passes, hidden_states = prefill(self.target, request.cache, request.tokens[:-1], self._hidden_layers)
        request.metrics.prefill_passes = passes
        if request.draft and self._levels(request) > 0:
            request.draft.prefill(hidden_states)

    def _is_long(self, request: Request) -> bool:
        """Whether the root lies beyond the original context of a target with LongRoPE."""
        return self.target.rope_switch is not None and len(request.tokens) > self.target.rope_switch

    def _read_again(self, request: Request) -> None:
        """Compute the KV cache anew, with the frequencies of long texts."""
        request.cache.reset()
        request.cache.long_rope = True
        prefill(self.target, request.cache, request.tokens[:-1])

    @property
    def _hidden_layers(self) -> tuple[int, ...]:
        return self.drafter.hidden_layers if self.drafter else ()

    def _levels(self, request: Request) -> int:
        """The levels a tree may have, by the text's limit, the drafter's context and the levels it can draft."""
        if self.drafter is None:
            return 0
        context, levels = self.drafter.context, self.drafter.levels
        beyond = sys.maxsize if context is None else context - len(request.tokens)
        switch = self.target.rope_switch
        short = sys.maxsize if switch is None or self._is_long(request) else switch - len(request.tokens)
        return min(request.remaining - 1, beyond, short, sys.maxsize if levels is None else levels)

    def propose(self, request: Request) -> DraftTree:
        """Draft the tree of a request's next round."""
        root = torch.tensor([request.tokens[-1:]], device=self.target.device)
        proposal, randomness = request.verifier.proposal, [request.randomness.at(len(request.tokens) - 1)]
        if request.draft is None:
            return DraftTree.rooted(root, proposal)
        with request.clock.propose:
            constrain = self._constrain(request) if request.constraints else None
            return grow(
                request.policy,
                AdjustedDraft(request.draft, request.verifier, randomness, request.draft_temperature, constrain),
                root,
                self._levels(request),
                states=(request.state,),
                sampler=None if proposal is Proposal.TOP_K else ChildSampler(proposal, randomness),
                vocab=self.target.vocab_size,
            )

    def _constrain(self, request: Request) -> Constrain:
        """Constrain drafted tokens to what the request's text may be."""
        tokens, vocab = list(request.tokens), self.target.vocab_size
        return lambda paths, logits: request.constraints.apply_to_draft(tokens, paths, logits, vocab)

    def score(self, request: Request, tree: DraftTree) -> Output:
        """The target's logits of every node, whose keys and values become drafted rows of the request's KV cache."""
        with request.clock.masks:
            positions, visible = tree.depths + request.cache.length, tree.ancestors
        with request.clock.target:
            wanted = self._hidden_layers
            return self.target.forward(request.cache, tree.tokens, positions, visible, hidden_layers=wanted)

    def _commit(self, request: Request, tree: DraftTree, verdict: Verdict, hidden: HiddenStates) -> tuple[int, int]:
        with request.clock.commit:
            ((path, bonus),) = verdict.host
            request.cache.commit(path)
            drafted = tree.branches[0].tokens
            tokens = [*(drafted[node] for node in path[1:]), bonus]
            if request.draft:
                request.draft.commit(tokens, tuple(layer[:, path] for layer in hidden))
            request.state = request.policy.observe(request.state, len(path) - 1, tree.levels)
        with request.clock.text:
            committed = request.commit(tokens, len(path) - 1)
        return committed, min(committed, len(path) - 1)

    def _finish(self, request: Request) -> Generation:
        try:
            while not request.finish_reason:
                self.step(request)
        except KeyboardInterrupt:
            request.end("interrupted")
        return Generation.of(request)

    def stream_request(self, request: Request) -> Iterator[Chunk]:
        """Advance a request to its end, yielding what each round adds."""
        while not request.finish_reason:
            known = len(request.tokens)
            try:
                self.step(request)
            except KeyboardInterrupt:
                request.end("interrupted")
            tokens = request.tokens[known:]
            drafted = request.drafted[len(request.drafted) - len(tokens) :]
            stream = request.text
            shown = stream.shown
            text = stream.read(final=bool(request.finish_reason))
            drafted_text = [request.drafted[token] for token in stream.origins[shown : shown + len(text)]]
            yield Chunk(text, tokens, drafted, request.finish_reason, drafted_text)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise InputError("a text prompt needs a tokenizer; pass token ids or give the decoder a tokenizer")
            if any("\ud800" <= character <= "\udfff" for character in prompt):
                raise InputError("the prompt holds half a surrogate pair, which is no text")
            prompt = self.tokenizer(prompt)["input_ids"]
        if isinstance(prompt, Mapping) and "input_ids" in prompt:
            prompt = prompt["input_ids"]
        prompt = getattr(prompt, "tolist", lambda: prompt)()
        if not isinstance(prompt, Iterable) or isinstance(prompt, dict):
            raise InputError(f"a prompt is text or token ids, not {type(prompt).__name__}")
        tokens = list(prompt)
        if not tokens:
            raise InputError("the prompt is empty; give at least one token")
        strange = [token for token in tokens if not isinstance(token, Integral) or isinstance(token, bool)]
        if strange:
            raise InputError(f"a token id is a whole number, not {strange[0]!r}")
        tokens = [int(token) for token in tokens]
        wrong = [token for token in tokens if not 0 <= token < self.target.vocab_size]
        if wrong:
            raise InputError(f"token id {wrong[0]} is outside the vocabulary of {self.target.vocab_size}")
        return tokens

    def _check(self, tokens: list[int], max_new_tokens: int) -> None:
        if not isinstance(max_new_tokens, Integral) or isinstance(max_new_tokens, bool) or max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {max_new_tokens!r}; it must be a whole number of at least 1")
        context = self.target.context
        if context is not None and len(tokens) + max_new_tokens > context:
            raise ContextError(
                f"the prompt of {len(tokens)} tokens and max_new_tokens={max_new_tokens} exceed the model's context "
                f"of {context}; shorten the prompt or ask for at most {max(context - len(tokens), 0)} tokens"
            )
