"""`drafttree bench serve`: a server under load."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.option_groups import given_options
from drafttree.interfaces.cli.options import (
    AsJson,
    Device,
    Drafter,
    Dtype,
    Files,
    Length,
    Limit,
    PolicySpec,
    Quantize,
    Repeats,
    Seed,
    Temperature,
    VerifierName,
    parse_numbers,
)
from drafttree.interfaces.cli.serve import check_extra
from drafttree.interfaces.console import print_json, progress
from drafttree.loading import find_policy, find_verifier


def bench_serve_(
    model: Annotated[str, typer.Argument(help='The model to serve: "embedded", a folder or a hub name.')] = "embedded",
    prompts: Files = None,
    clients: Annotated[str, typer.Option(help="Numbers of concurrent clients.")] = "1,4,16",
    drafter: Drafter = "auto",
    policy: PolicySpec = None,
    verifier: VerifierName = "auto",
    system_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Length of a shared system prompt in tokens. The other server then shares no prefixes.",
        ),
    ] = None,
    per_client: Annotated[int, typer.Option(min=1, help="Number of texts per client and turn.")] = 2,
    max_new_tokens: Length = 64,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 5,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    quantize: Quantize = None,
    json_: AsJson = False,
) -> None:
    """Measure a server under load, with and without drafts.

    Both servers run as processes of their own and answer the same prompts over HTTP in turns. With --system-tokens, the
    other server is `drafttree serve --prefix-tokens 0`, and each turn has another system prompt.
    """
    check_extra()
    sizes = parse_numbers(clients, "--clients", 1)
    find_policy(policy)
    find_verifier(verifier)

    from drafttree.interfaces.cli.decoders import shipped_examples
    from drafttree.measure.prompt_form import AS_TEXT
    from drafttree.measure.prompts import read_examples
    from drafttree_lab.display.serve import show_serve
    from drafttree_lab.load.serve import SHARED, SPECULATIVE, WHOLE, WITHOUT_DRAFTER, bench_serve, system_prompts

    examples = read_examples(prompts, limit) if prompts else shipped_examples(limit, AS_TEXT)
    options = {"policy": policy, "verifier": verifier, "dtype": dtype, "device": device, "quantize": quantize}
    shared = [part for name, value in given_options(options).items() for part in (f"--{name}", value)]
    shared += ["--max-batch", str(max(sizes)), "--port", "0"]
    ways, systems = {SPECULATIVE: [drafter], WITHOUT_DRAFTER: ["none"]}, [""]
    if system_tokens:
        from drafttree.loading.pretrained import load_tokenizer

        ways = {SHARED: [drafter], WHOLE: [drafter, "--prefix-tokens", "0"]}
        turns = len(sizes) * (repeats + 1)
        systems = system_prompts([each.prompt for each in examples], load_tokenizer(model), system_tokens, turns)
    with ExitStack() as stack:
        addresses = {
            way: stack.enter_context(_served([model, "--drafter", *own, *shared])) for way, own in ways.items()
        }
        with progress(2 * len(sizes) * (repeats + 1)) as advance:
            result = bench_serve(
                addresses,
                [example.prompt for example in examples],
                sizes,
                systems=systems,
                repeats=repeats,
                per_client=per_client,
                progress=advance,
                max_new_tokens=max_new_tokens,
                temperature=temperature or 0.0,
                seed=seed,
            )
    if json_:
        print_json(result.summary())
    else:
        show_serve(result)


@contextmanager
def _served(arguments: Sequence[str]) -> Iterator[str]:
    """A server as a process of its own; its address.

    Raises:
        ConfigError: it does not start, and says why.
    """
    command = [sys.executable, "-m", "drafttree", "serve", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield _address(process)
        finally:
            process.terminate()


def _address(process: "subprocess.Popen[str]") -> str:
    said = ""
    for said in process.stderr or ():
        if found := re.search(r"serving .* at (http://\S+)", said):
            return found[1]
    raise ConfigError(
        f"a server does not start: {said.removeprefix('drafttree: error: ').strip() or 'it says nothing'}"
    )
