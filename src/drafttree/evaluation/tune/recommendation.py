"""A tuning's outcome as what to do: a file to load, and lines of Python."""

import datetime
import shlex
from importlib.metadata import version
from pathlib import Path

from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.prices import machine
from drafttree.engine.model_digest import model_digest
from drafttree.evaluation.tune.tuning import Tuning
from drafttree.loading import TunedPolicy, policy_spec, zoo
from drafttree.loading.drafters import MIXED
from drafttree.loading.tuned import TunedModel
from drafttree.measure.reference import transformers_model
from drafttree.policies import Chain


def tuned_policy(tuning: Tuning, decoder: Decoder, target: str, verifier: str) -> TunedPolicy:
    """The recommendation as a policy that `drafttree.load` takes, in a file or as it is.

    Args:
        tuning: the outcome of the tuning.
        decoder: the decoder that was tuned.
        target: the name or folder of its target.
        verifier: the name of its verifier, or "auto".

    Raises:
        ConfigError: the target is no transformers model, and so cannot be known again.
    """
    model, best, found = transformers_model(decoder), None, tuning.decoder
    if tuning.speculates and tuning.best and found and found.drafter:
        best = TunedModel(_lasting(tuning.best.drafter), model_digest(found.drafter))
    return TunedPolicy(
        target=TunedModel(_lasting(target), model_digest(model)),
        drafter=best,
        policy=tuning.best.policy if best and tuning.best else policy_spec(Chain()),
        verifier=verifier,
        dtype=str(model.dtype).removeprefix("torch."),
        machine=machine(model.device),
        costs=tuning.costs if best else None,
        draft_temperature=_draft_temperature(tuning) or 1.0,
        measured=_measured(tuning),
        drafttree=version("drafttree"),
        date=datetime.date.today().isoformat(),
    )


def python_lines(tuning: Tuning, target: str, saved: Path | None, verifier: str, dtype: str) -> list[str]:
    """Three lines of Python that use the recommendation.

    Args:
        tuning: the outcome of the tuning.
        target: the name or folder of its target.
        saved: the file it was saved in, if it was.
        verifier: the name of the verifier, or "auto".
        dtype: the dtype of the target.
    """
    chosen = [f"policy={str(saved)!r}"] if saved else ["drafter='none'"]
    if tuning.speculates and tuning.best and not saved:
        chosen = [f"drafter={tuning.best.drafter!r}", f"policy={tuning.best.policy!r}", f"dtype={dtype!r}"]
        chosen += [f"verifier={verifier!r}"] if verifier != "auto" else []
    load = f"decoder = drafttree.load({', '.join([repr(target), *chosen])})"
    warm = None if saved else _draft_temperature(tuning)
    option = f", draft_temperature={warm}" if warm else ""
    return ["import drafttree", load, f'print(decoder.generate("Once upon a time"{option}).text)']


def command_options(tuning: Tuning, saved: Path | None, verifier: str) -> str:
    """The options of a command that use the recommendation; arguments as for `python_lines`."""
    if saved:
        return shlex.join(["--policy", str(saved)])
    if not (tuning.speculates and tuning.best):
        return "--drafter none"
    chosen = ["--drafter", tuning.best.drafter, "--policy", tuning.best.policy]
    chosen += ["--verifier", verifier] if verifier != "auto" else []
    chosen += ["--draft-temperature", str(warm)] if (warm := _draft_temperature(tuning)) else []
    return shlex.join(chosen)


def _draft_temperature(tuning: Tuning) -> float | None:
    """The recommended draft temperature; None for 1."""
    found = tuning.best.draft_temperature if tuning.speculates and tuning.best else 1.0
    return found if found != 1 else None


def _measured(tuning: Tuning) -> dict[str, object]:
    names = {"speculate", "gain", "expected", "confirmed", "law"}
    return {name: value for name, value in tuning.summary().items() if name in names}


def _lasting(name: str) -> str:
    """A model's name that holds in other working folders too."""
    prefix, model = (MIXED, name.removeprefix(MIXED)) if name.startswith(MIXED) else ("", name)
    return prefix + (str(Path(model).resolve()) if model not in zoo.NAMES and Path(model).is_dir() else model)
