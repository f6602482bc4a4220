"""The command `drafttree`: subcommands, exit codes, and errors in one line."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn, cast

import typer

import drafttree
from drafttree.core.errors import DraftTreeError
from drafttree.interfaces.cli import lists
from drafttree.interfaces.cli.batch import batch
from drafttree.interfaces.cli.certify import certify
from drafttree.interfaces.cli.chat import chat
from drafttree.interfaces.cli.command_help import HelpCommand, footer
from drafttree.interfaces.cli.connect import connect
from drafttree.interfaces.cli.demo import demo
from drafttree.interfaces.cli.examples import EXAMPLES, UNTIMED
from drafttree.interfaces.cli.generate import generate
from drafttree.interfaces.cli.lab_commands import Commands
from drafttree.interfaces.cli.quantize import quantize
from drafttree.interfaces.cli.results import EXIT_CODES, INTERRUPTED, tell_end
from drafttree.interfaces.cli.serve import serve
from drafttree.interfaces.cli.trace import trace
from drafttree.interfaces.cli.tune import tune
from drafttree.interfaces.cli.worker import worker
from drafttree.measure.run_store import NothingFinished

USAGE_ERROR = cast(type[Exception], typer.BadParameter.__base__)
ELSEWHERE = {
    "V": "version",
    "k": "top-k",
    "m": "target",
    "model": "target",
    "draft-model": "drafter",
    "max-length": "max-new-tokens",
    "max-tokens": "max-new-tokens",
    "n": "max-new-tokens",
    "p": "top-p",
    "s": "seed",
    "t": "temperature",
    "v": "version",
}
"""Names of options in similar programs, and our name of each."""

app = typer.Typer(
    cls=Commands,
    help="Speed up Hugging Face text generation with draft trees, without changing the text.",
    epilog=f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
COMMANDS = (
    *(demo, generate, chat, batch, serve, connect, worker, lists.drafters, lists.policies, lists.verifiers),
    *(lists.inspect, quantize, trace, tune, certify),
)
for command in COMMANDS:
    name = command.__name__
    end = footer(EXAMPLES[name], timed=name not in UNTIMED) if name in EXAMPLES else None
    app.command(name, cls=HelpCommand, epilog=end)(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of `EXIT_CODES`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _quiet()
    if "" not in sys.path:
        sys.path.append("")  # --policy module.Class finds modules of the working folder, after all others
    try:
        code = app(arguments or ["--help"], prog_name="drafttree", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        code = 1
    except OSError as error:
        code = _complain(f"{error.filename or 'standard output'}: {error.strerror or error}")
        _discard_output()
    except KeyboardInterrupt:
        print("drafttree: interrupted", file=sys.stderr)
        code = INTERRUPTED
    except NothingFinished as unfinished_run:
        print(f"drafttree: {unfinished_run}", file=sys.stderr)
        code = tell_end(unfinished_run.store)
    except DraftTreeError as error:
        code = _complain(str(error))
    except USAGE_ERROR as error:
        _suggest_names(error)
        code = _complain(getattr(error, "format_message", error.__str__)())
    sys.exit(code if isinstance(code, int) else 0)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(drafttree.__version__)
        raise typer.Exit


def _quiet() -> None:
    """Silence warnings and retry notices of libraries, and prevent crashes on odd encodings and closed streams.

    Libraries that may be imported later are configured by environment variables.
    """
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for name in ("huggingface_hub", "httpx", "httpx2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _discard_output() -> None:
    """Discard the buffer of standard output, which Python would otherwise try to write on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _suggest_names(error: Any) -> None:
    """Replace the suggestions for an unknown option. Names are compared without dashes, which make all names similar.

    Names of the option in other programs, and the beginning of a name, count as similar too.
    """
    name = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if name is None or context is None:
        return
    options = {
        option.lstrip("-"): option for param in context.command.params for option in param.opts if option[0] == "-"
    }
    bare_name = name.lstrip("-")
    arguments = {param.name for param in context.command.params if param.param_type_name == "argument"}
    if "model" in arguments and "target" in (bare_name, ELSEWHERE.get(bare_name)):
        error.message += f"; the model is an argument here: {context.command_path} MODEL"
        return
    if ELSEWHERE.get(bare_name) in options:
        suggestions = [ELSEWHERE[bare_name]]
    else:
        completions = [candidate for candidate in options if len(bare_name) > 1 and candidate.startswith(bare_name)]
        suggestions = dict.fromkeys([*completions, *get_close_matches(bare_name, options)])
    error.possibilities = [options[candidate] for candidate in suggestions]


def _complain(message: str) -> int:
    print(f"drafttree: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
