"""`drafttree generate`: write from a prompt."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import ConfigError
from drafttree.evaluation.curve_file import read_cost_curves
from drafttree.interfaces.cli.image_files import ImageFile, check_reads_images, message_content
from drafttree.interfaces.cli.option_groups import DecoderOptions, TextOptions, grouped
from drafttree.interfaces.cli.options import (
    AsJson,
    Inflate,
    PromptText,
    Target,
    TensorParallelSize,
)
from drafttree.interfaces.cli.processes import one_voice
from drafttree.interfaces.cli.results import INTERRUPTED
from drafttree.interfaces.console import make_console, print_json, working
from drafttree.loading import find_policy, find_verifier
from drafttree.loading.specs import default_policy, policy_spec
from drafttree.measure.prompts import read_prompt

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder, Prompt
    from drafttree.engine.generation import Generation
    from drafttree.evaluation.compare import Comparison


@dataclass(frozen=True)
class TargetOptions:
    """The target, whether it is inflated or sharded, and what its passes cost."""

    target: Target = "embedded"
    inflated: Inflate = None
    tensor_parallel_size: TensorParallelSize = 1
    costs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Measured costs for the policy "auto", from an earlier run with --json.'),
    ] = None

    @property
    def is_sharded(self) -> bool:
        """Whether several processes share the target."""
        return self.tensor_parallel_size > 1

    def check_sharded(self, prompt: str | None, compare: bool) -> None:
        """Refuse options that do not work with several processes.

        Raises:
            ConfigError: the prompt comes from standard input, the target is inflated, or texts are compared.
        """
        if prompt in (None, "-"):
            raise ConfigError("with --tensor-parallel-size every process needs the prompt; give it as an argument")
        if self.inflated:
            raise ConfigError("--inflate and --tensor-parallel-size cannot be combined; leave one of them out")
        if compare:
            raise ConfigError("--compare and --tensor-parallel-size cannot be combined; leave one of them out")

    def read_costs(self, models: DecoderOptions) -> CostCurve | None:
        """The drafter's cost curve from the file `costs`; None without a file.

        Raises:
            ConfigError: the policy does not use costs.
        """
        if not self.costs:
            return None
        policy = find_policy(models.policy) or default_policy(find_verifier(models.verifier))
        if not getattr(policy, "uses_costs", False):
            raise ConfigError(f"--costs {str(self.costs)!r} is for the policy auto; add --policy auto, or leave it out")
        return read_cost_curves(self.costs, [models.drafter])[models.drafter]

    def load(self, models: DecoderOptions, curve: CostCurve | None) -> "Decoder":
        """The decoder of the target, with a cost curve if one is given."""
        if self.inflated:
            decoder = models.load_inflated(self.target, self.inflated)
        else:
            decoder = models.load(self.target, tensor_parallel_size=self.tensor_parallel_size)
        return decoder.with_costs(curve) if curve else decoder


@dataclass(frozen=True)
class PromptOptions:
    """The prompt, and whether it is a message, which may have images."""

    prompt: PromptText = None
    chat: Annotated[bool, typer.Option("--chat", help="Apply the model's chat template to the prompt.")] = False
    image: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Image that the prompt is about, for models that read images. Implies --chat. May be repeated.",
        ),
    ] = None

    def read(self) -> "Prompt":
        """The text of the prompt, or the message that it is.

        Raises:
            InputError: there is no prompt, or an image cannot be read.
        """
        text = read_prompt(self.prompt)
        images = [ImageFile.read(path) for path in self.image or ()]
        return [{"role": "user", "content": message_content(text, images)}] if self.chat or images else text


@grouped
def generate(
    context: typer.Context,
    models: DecoderOptions,
    writing: TextOptions,
    question: PromptOptions,
    *,
    target: TargetOptions,
    compare: Annotated[bool, typer.Option("--compare", help="Also time plain decoding and transformers.")] = False,
    repeats: Annotated[int, typer.Option(min=1, metavar="RUNS", help="Timed runs of each method with --compare.")] = 3,
    json_: AsJson = False,
) -> None:
    """Generate text from a prompt.

    In a terminal, accepted draft tokens are green. Options that are not given come from the model's generation config.
    """
    if target.is_sharded:
        target.check_sharded(question.prompt, compare)
        context.with_resource(one_voice())
    options = writing.to_dict()
    if question.image and compare:
        raise ConfigError("--compare and --image cannot be combined; leave one of them out")
    prompt = question.read()
    models.check()
    curve = target.read_costs(models)
    decoder = target.load(models, curve)
    if not json_:
        _tell_defaults(decoder)
    if decoder.drafter is None and compare:
        raise ConfigError("--compare needs a drafter; name one with --drafter")
    if question.image:
        check_reads_images(decoder)
    generation = _write(decoder, prompt, options, quiet=json_, echo=prompt if isinstance(prompt, str) else "")
    interrupted = generation.finish_reason == "interrupted"
    comparison = _compare(decoder, prompt, repeats, options) if compare and not interrupted else None
    if json_:
        print_json(_report(generation, comparison))
    else:
        _show(decoder, generation, comparison)
    raise typer.Exit(INTERRUPTED if interrupted else 0)


def _tell_defaults(decoder: "Decoder") -> None:
    """Say on standard error which options come from the model's generation config."""
    from drafttree.engine.generation_options import show_options

    model_options = {name: value for name, value in decoder.defaults.items() if name != "draft_temperature"}
    if model_options:
        note = f"the model's own options: {show_options(model_options)}"
        make_console(stderr=True).print(Text(note, style="dim"))


def _write(decoder: "Decoder", prompt: "Prompt", options: dict, *, quiet: bool, echo: str) -> "Generation":
    """Generate a text until it ends or Ctrl-C ends it.

    Args:
        decoder: the decoder.
        prompt: the prompt, or the messages of a chat.
        options: options of `Decoder.stream`.
        quiet: whether to print nothing.
        echo: text to show before it, in a terminal.
    """
    from drafttree.interfaces.display import show_chunk

    stream = decoder.stream(prompt, **options)
    console = make_console()
    show = not quiet
    if show and console.is_terminal:
        console.print(Text(echo, style="dim"), end="", soft_wrap=True)
    try:
        for chunk in stream:
            if show:
                show_chunk(console, chunk)
    except KeyboardInterrupt:
        stream.close()
    if show:
        print(flush=True)
    return stream.result


def _compare(decoder: "Decoder", prompt: "Prompt", repeats: int, options: dict) -> "Comparison":
    from drafttree.evaluation.compare import compare

    with working("Timing drafttree, plain decoding and transformers alternately ..."):
        return compare(decoder, prompt, repeats=repeats, **options)


def _show(decoder: "Decoder", generation: "Generation", comparison: "Comparison | None") -> None:
    """Print the comparison if there is one, else the speed of the text and whether it is lossy."""
    from drafttree.interfaces import display

    if comparison:
        display.show_comparison(comparison, policy_spec(decoder.policy))
    else:
        display.show_speed(generation)
        display.show_lossy(generation.fidelity)


def _report(generation: "Generation", comparison: "Comparison | None") -> dict[str, object]:
    """The text and its figures, for JSON."""
    report: dict[str, object] = {
        "text": generation.text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "costs": generation.costs and generation.costs.to_json(),
        "metrics": generation.metrics.summary(),
        **generation.fidelity.to_json(),
    }
    return report | ({"comparison": comparison.summary()} if comparison else {})
