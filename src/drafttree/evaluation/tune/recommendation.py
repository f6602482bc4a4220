"""The outcome of a tuning, and its use: a file to load, options of a command, and lines of Python."""

import datetime
import math
import shlex
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from drafttree.core.cost_curve import CostCurve
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.prices import machine
from drafttree.engine.model_digest import model_digest
from drafttree.evaluation.tune.race import Rung
from drafttree.loading import TunedPolicy, policy_spec, zoo
from drafttree.loading.drafters import MIXED
from drafttree.loading.tuned import TunedModel
from drafttree.measure.interval import Interval
from drafttree.measure.law import Speedup
from drafttree.measure.reference import transformers_model
from drafttree.policies import Chain

MEASURED = {"speculate", "gain", "expected", "confirmed", "law"}
"""The figures that are written into the file of a tuned policy."""


@dataclass(frozen=True)
class TunedMethod:
    """The measurement of a drafter and a policy.

    Attributes:
        drafter: the name of the drafter.
        policy: the canonical specification of the policy.
        texts: texts that were compared with plain decoding.
        ratio: decoding speed over plain decoding's; None if `Speedup.doubt` speaks against it.
        draft_temperature: the draft temperature of the texts.
    """

    drafter: str
    policy: str
    texts: int
    ratio: float | None
    draft_temperature: float = 1.0

    def __str__(self) -> str:
        temperature = "" if self.draft_temperature == 1 else f" at draft temperature {self.draft_temperature:g}"
        return f"{self.drafter} with {self.policy}{temperature}"


@dataclass(frozen=True)
class TemperatureGain:
    """The gain of a draft temperature other than 1.

    Attributes:
        draft_temperature: the fastest draft temperature other than 1.
        way: the drafter and the policy that it was measured with.
        rival: the fastest drafter and policy at draft temperature 1.
        ratio: decoding speed over the rival's, measured alternately on the same prompts.
        confirmed: whether the ratio was measured after the choice.
    """

    draft_temperature: float
    way: str
    rival: str
    ratio: Interval
    confirmed: bool

    @property
    def pays(self) -> bool:
        """Whether the draft temperature is recommended: its ratio is confirmed, and the whole interval is above 1."""
        return self.confirmed and self.ratio.low is not None and self.ratio.low > 1

    @property
    def sentence(self) -> str:
        """The gain in one line, for people."""
        ratio = self.ratio
        interval = "one text" if ratio.low is None else f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}"
        is_one_way = self.way == self.rival
        subject = "Draft temperature" if is_one_way else f"{self.way} at draft temperature"
        rival = "" if is_one_way else f"{self.rival} at "
        confirmation = "" if self.confirmed else "; not confirmed"
        speed = f"{ratio.mean:.2f} times as fast as {rival}1.0 ({interval}{confirmation})"
        return f"{subject} {float(self.draft_temperature)} is {speed}{'' if self.pays else ', so 1.0 is kept'}."


@dataclass(frozen=True)
class Tuning:
    """The outcome of a tuning.

    Attributes:
        best: the fastest way; None if none could be measured.
        decoder: the decoder of that way.
        costs: the cost curve of its drafter.
        expected: R by the cost curve and by what was accepted in the texts of the choice.
        gain: the gain in decoding speed over plain decoding, with its interval; None without a text.
        confirmed: whether the gain was measured after the choice, so without its bias, and on several prompts.
        apart: whether the gain was measured on prompts that were not used for the choice.
        speedup: the texts that the gain was measured on, compared with plain decoding; None if there is no best way.
        ways: all ways that were tried, those of the last rung first and the fastest of a rung first.
        rungs: the rungs of the successive halving.
        missing: what was not measured for lack of time, a clause each.
        left_out: by drafter, why it cannot be used.
        too_short: prompts that were left out as too short.
        interrupted: whether Ctrl-C or the time limit ended the tuning early.
        temperature_gain: the gain of a draft temperature other than 1; None if none was raced.
        one_prompt: whether all prompts were equal, so that the gain says nothing about others.
    """

    best: TunedMethod | None
    decoder: Decoder | None
    costs: CostCurve | None
    expected: float
    gain: Interval | None
    confirmed: bool
    apart: bool
    speedup: Speedup | None
    ways: list[TunedMethod]
    rungs: list[Rung]
    missing: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    too_short: int = 0
    interrupted: bool = False
    temperature_gain: TemperatureGain | None = None
    one_prompt: bool = False

    @property
    def recommends(self) -> bool:
        """Whether anything is recommended, even plain decoding: the gain is confirmed and the tuning complete."""
        has_verdict = self.speedup is not None and (not self.doubt or self.speedup.drafts_nothing)
        return self.confirmed and not self.interrupted and has_verdict

    @property
    def speculates(self) -> bool:
        """Whether speculation is recommended: the gain is confirmed and certain, and its whole interval is above 0."""
        return self.gain is not None and (self.gain.low or 0.0) > 0 and self.confirmed and not self.doubt

    @property
    def doubt(self) -> str | None:
        """Why no gain is reported (`Speedup.doubt`); None if there is no doubt."""
        return self.speedup.doubt if self.speedup else None

    def summary(self) -> dict[str, object]:
        """All figures, for JSON. Ratios are None if there is a doubt; the margin, if it is infinite."""
        is_conclusive = not self.doubt
        gain = self.gain
        margin = gain.margin if gain and math.isfinite(gain.margin) else None
        return {
            "speculate": self.speculates,
            "best": self.best and asdict(self.best),
            "gain": {"mean": gain.mean, "margin": margin} if gain and is_conclusive else None,
            **(self.speedup.summary() if self.speedup else {}),
            "expected": self.expected,
            "confirmed": self.confirmed,
            "on prompts apart": self.apart,
            "doubt": self.doubt,
            "draft temperature": asdict(self.temperature_gain) if self.temperature_gain and is_conclusive else None,
            "costs": self.costs and self.costs.to_json(),
            "ways": [asdict(way) for way in self.ways],
            "rungs": [asdict(rung) for rung in self.rungs],
            "missing": self.missing,
            "left_out": self.left_out,
            "too_short": self.too_short,
            "interrupted": self.interrupted,
            "one prompt": self.one_prompt,
        }


def tuned_policy(tuning: Tuning, decoder: Decoder, target: str, verifier: str) -> TunedPolicy:
    """The recommendation as a policy, which `drafttree.load` takes as an object or from a file.

    Args:
        tuning: the outcome of the tuning.
        decoder: the decoder that was tuned.
        target: the name or folder of its target.
        verifier: the name of its verifier, or "auto".

    Raises:
        ConfigError: the target is not a transformers model, which could not be recognised later.
    """
    model = transformers_model(decoder)
    drafter_model = None
    tuned_decoder = tuning.decoder
    if tuning.speculates and tuning.best and tuned_decoder and tuned_decoder.drafter:
        drafter_model = TunedModel(_lasting(tuning.best.drafter), model_digest(tuned_decoder.drafter))
    return TunedPolicy(
        target=TunedModel(_lasting(target), model_digest(model)),
        drafter=drafter_model,
        policy=tuning.best.policy if drafter_model and tuning.best else policy_spec(Chain()),
        verifier=verifier,
        dtype=str(model.dtype).removeprefix("torch."),
        machine=machine(model.device),
        costs=tuning.costs if drafter_model else None,
        draft_temperature=_draft_temperature(tuning) or 1.0,
        measured={name: value for name, value in tuning.summary().items() if name in MEASURED},
        drafttree=version("drafttree"),
        date=datetime.date.today().isoformat(),
    )


def python_lines(tuning: Tuning, target: str, saved: Path | None, verifier: str, dtype: str) -> list[str]:
    """Three lines of Python that use the recommendation.

    Args:
        tuning: the outcome of the tuning.
        target: the name or folder of its target.
        saved: the file that the recommendation was saved in; None if it was not saved.
        verifier: the name of the verifier, or "auto".
        dtype: the dtype of the target.
    """
    options = _load_options(tuning, saved, verifier, dtype=dtype)
    arguments = (f"{name}={value!r}" for name, value in options.items())
    load_line = f"decoder = drafttree.load({', '.join([repr(target), *arguments])})"
    temperature = None if saved else _draft_temperature(tuning)
    option = f", draft_temperature={temperature}" if temperature else ""
    return ["import drafttree", load_line, f'print(decoder.generate("Once upon a time"{option}).text)']


def command_options(tuning: Tuning, saved: Path | None, verifier: str) -> str:
    """The options of a command that use the recommendation; arguments as for `python_lines`."""
    temperature = None if saved else _draft_temperature(tuning)
    options = _load_options(tuning, saved, verifier) | ({"draft-temperature": str(temperature)} if temperature else {})
    return shlex.join(word for name, value in options.items() for word in (f"--{name}", value))


def _load_options(tuning: Tuning, saved: Path | None, verifier: str, **other_options: str) -> dict[str, str]:
    """The options of `load` for the recommendation; `other_options` are added if it names a drafter and a policy."""
    if saved:
        return {"policy": str(saved)}
    if not (tuning.speculates and tuning.best):
        return {"drafter": "none"}
    verifier_option = {"verifier": verifier} if verifier != "auto" else {}
    return {"drafter": tuning.best.drafter, "policy": tuning.best.policy, **other_options, **verifier_option}


def _draft_temperature(tuning: Tuning) -> float | None:
    """The recommended draft temperature; None if it is 1, which is the default."""
    temperature = tuning.best.draft_temperature if tuning.speculates and tuning.best else 1.0
    return temperature if temperature != 1 else None


def _lasting(name: str) -> str:
    """A model's name that is valid in any working folder; a folder becomes its absolute path."""
    prefix, model = (MIXED, name.removeprefix(MIXED)) if name.startswith(MIXED) else ("", name)
    return prefix + (str(Path(model).resolve()) if model not in zoo.NAMES and Path(model).is_dir() else model)
