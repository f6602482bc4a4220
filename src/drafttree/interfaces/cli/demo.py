"""`drafttree demo`: plain and speculative decoding side by side, with the models of the package."""

from typing import Any

from rich.text import Text

from drafttree.core.errors import ConfigError
from drafttree.core.sampling import Sampling
from drafttree.evaluation.prompts import read_prompt
from drafttree.evaluation.shapes import find_shape
from drafttree.interfaces.cli.options import (
    AsJson,
    Device,
    Drafter,
    Dtype,
    Inflate,
    Length,
    PolicySpec,
    PromptText,
    Quantize,
    Seed,
    Temperature,
)
from drafttree.interfaces.console import make_console, print_json
from drafttree.loading import make_policy

OPENING = "The old man looked at the sea for a long time, and then he said"


def demo(
    prompt: PromptText = OPENING,
    drafter: Drafter = "auto",
    policy: PolicySpec = None,
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.5,
    seed: Seed = 0,
    inflated: Inflate = None,
    quantize: Quantize = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json_: AsJson = False,
) -> None:
    """Show plain and speculative decoding side by side, live.

    The models are those of the package. The target computes what the embedded one does, at the cost of a larger model
    whose passes take about 40 ms here. Greedily this small target ends in loops, which flatter drafts; so it samples.
    """
    if inflated:
        find_shape(inflated)
    chosen, text = make_policy(policy) if policy else None, read_prompt(prompt)
    options: dict[str, Any] = {"temperature": temperature or 0.0, "seed": seed, "max_new_tokens": max_new_tokens}
    Sampling.from_options({"temperature": options["temperature"], "seed": seed})

    from drafttree.evaluation import demo as shown
    from drafttree.evaluation.side_by_side import SideBySide
    from drafttree.interfaces.cli.decoders import hide_bars
    from drafttree.interfaces.demo_display import show_side_by_side

    hide_bars()
    console, notes = make_console(), make_console(stderr=True)
    notes.print(Text("making a target that is as slow as a larger one ...", style="dim"))
    target = shown.load_demo(drafter, dtype, device, quantize, inflated)
    decoder = target.decoder.with_policy(chosen) if chosen else target.decoder
    if decoder.drafter is None:
        raise ConfigError(f"--drafter {drafter} drafts nothing; name another, or leave it out")
    notes.print(Text(target.sentence, style="dim"))
    if decoder.policy.uses_costs:
        notes.print(Text("looking at what passes cost, which is measured once ...", style="dim"))
        decoder.costs(greedy=not temperature)
    race = SideBySide({shown.PLAIN: decoder.plain(), shown.DRAFTED: decoder}, text, **options)
    show_side_by_side(console, text, race)
    result = shown.judge(target, race.texts(), text, options)
    if json_:
        print_json(result.summary())
    else:
        console.print(*result.lines, sep="\n")
