"""Files of `drafttree tune --save`: a policy with the models, machine and costs that it was tuned for."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from drafttree.core.cost_curve import CostCurve, parse_cost_curve
from drafttree.core.errors import ConfigError, InputError, ModelError
from drafttree.core.sampling import MIN_TEMPERATURE
from drafttree.loading.json_file import read_json_file
from drafttree.loading.specs import TUNED, PolicyLike, find_verifier, make_policy
from drafttree.policies import TreePolicy

FORMAT, VERSION = "drafttree tuned policy", 1
AGAIN = "make one by drafttree tune --save"


class TunedModel(NamedTuple):
    """A model of a tuned policy: its name when it was tuned, and its `drafttree.engine.model_digest`."""

    name: str
    digest: str


@dataclass(frozen=True)
class TunedPolicy:
    """A tuned policy.

    Attributes:
        target: the target it was tuned for.
        drafter: the drafter it was tuned with; None if tuning found plain decoding to be faster.
        policy: specification of the policy.
        verifier: the name of the verifier, or "auto".
        dtype: dtype of the target, such as "float32".
        machine: the machine that the costs were measured on, as `drafttree.engine.drafting.prices.machine` names it.
        costs: the cost curve; None without a drafter.
        draft_temperature: divisor of the drafter's logits; 1 in files of earlier versions, which lack it.
        measured: measurements of the tuning, for people to read.
        drafttree: version of drafttree that tuned.
        date: date of the tuning.
        path: file it was read from, for messages.
    """

    target: TunedModel
    drafter: TunedModel | None
    policy: str
    verifier: str
    dtype: str
    machine: str
    costs: CostCurve | None
    draft_temperature: float = 1.0
    measured: Mapping[str, Any] = field(default_factory=dict)
    drafttree: str = ""
    date: str = ""
    path: str = "the tuned policy"

    def write(self, path: Path) -> None:
        """Write the tuned policy to a file that `read_tuned` reads.

        Raises:
            InputError: the file cannot be written.
        """
        fields = {name: value for name, value in vars(self).items() if name != "path"}
        fields |= {"target": self.target._asdict(), "drafter": self.drafter and self.drafter._asdict()}
        fields |= {"costs": self.costs and self.costs.to_json(), "measured": dict(self.measured)}
        try:
            text = json.dumps({"format": FORMAT, "version": VERSION, **fields}, indent=1, allow_nan=False)
            path.write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}; name another") from None

    def check_target(self, digest: str, dtype: str) -> None:
        """Refuse a target that the policy was not tuned for.

        Args:
            digest: `model_digest` of the target.
            dtype: dtype of the target, such as "float32".

        Raises:
            ModelError: the target is another model or in another dtype.
        """
        if dtype != self.dtype:
            raise ModelError(
                f"{self.path} was tuned for a target in {self.dtype}, and this one is in {dtype}; "
                f"load it with dtype={self.dtype!r}, or tune again"
            )
        if digest != self.target.digest:
            raise ModelError(
                f"{self.path} was tuned for {self.target.name!r}, but this target is another model, has other "
                "weights, or is quantized in another way; tune again for it"
            )

    def check_drafter(self, digest: str) -> None:
        """Refuse a drafter that the policy was not tuned with.

        Args:
            digest: `model_digest` of the drafter.

        Raises:
            ModelError: the drafter is another one, or the policy was tuned to have none.
        """
        if self.drafter is None:
            raise ModelError(f'{self.path} says not to speculate; leave the drafter at "auto", or name another policy')
        if digest != self.drafter.digest:
            name = self.drafter.name
            raise ModelError(
                f"{self.path} was tuned with {name!r}, but this drafter is another model, has other weights, or is "
                "quantized in another way; tune again with it"
            )


def find_policy(policy: PolicyLike | TunedPolicy | Path | None) -> TreePolicy | TunedPolicy | None:
    """The policy of `make_policy`, or the tuned policy in a file, which is a path or a name that ends in ".json".

    None stays None: it means the default, which depends on the verifier (`default_policy`).

    Raises:
        ConfigError: the policy or a parameter does not exist, or a value is out of range.
        InputError: the file holds no tuned policy.
    """
    if policy is None or isinstance(policy, TunedPolicy):
        return policy
    if isinstance(policy, Path) or (isinstance(policy, str) and policy.endswith(TUNED)):
        return read_tuned(Path(policy))
    return make_policy(policy)


def read_tuned(path: Path) -> TunedPolicy:
    """The tuned policy of a file.

    Raises:
        InputError: the file cannot be read, is of another format or version, or lacks a part; the message names it.
    """
    contents = read_json_file(path)
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise InputError(f"{path}: this is not a tuned policy; {AGAIN}")
    if (version := contents.get("version")) != VERSION:
        raise InputError(
            f"{path}: a tuned policy in format version {version!r}, but this drafttree reads version {VERSION}; {AGAIN}"
        )
    try:
        return _parse(contents, str(path))
    except ConfigError as error:
        raise InputError(f"{path}: {error}") from None


def check_save(path: Path) -> None:
    """Refuse, before tuning starts, a file that could not be written or would not be recognised as a policy.

    Raises:
        InputError: the file cannot be written, or its name does not end in ".json".
    """
    if path.suffix != TUNED:
        raise InputError(
            f"--save {str(path)!r} does not end in {TUNED}, by which --policy recognises a tuned policy; name "
            "another file"
        )
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(
            f"--save {str(path)!r} cannot be written, because its folder does not exist; name another file"
        )


def _parse(contents: dict[str, Any], path: str) -> TunedPolicy:
    texts = {name: _text(contents, name) for name in ("policy", "verifier", "dtype", "machine", "drafttree", "date")}
    make_policy(texts["policy"])
    find_verifier(texts["verifier"])
    if not isinstance(measured := contents.get("measured"), dict):
        raise ConfigError(f"its 'measured' is {measured!r}, not an object; {AGAIN}")
    if "drafter" not in contents:
        raise ConfigError(f"its 'drafter' is missing; {AGAIN}")
    drafter = None if contents["drafter"] is None else _model(contents, "drafter")
    return TunedPolicy(
        target=_model(contents, "target"),
        drafter=drafter,
        costs=_parse_costs(contents) if drafter else None,
        draft_temperature=_draft_temperature(contents),
        measured=measured,
        path=path,
        **texts,
    )


def _parse_costs(contents: dict[str, Any]) -> CostCurve:
    try:
        return parse_cost_curve(contents.get("costs"))
    except ConfigError as error:
        raise ConfigError(f"its 'costs' are wrong: {error}; or {AGAIN}") from None


def _draft_temperature(contents: dict[str, Any]) -> float:
    value = contents.get("draft_temperature", 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_TEMPERATURE <= value < math.inf:
        raise ConfigError(f"its 'draft_temperature' is {value!r}, not a number of at least {MIN_TEMPERATURE}; {AGAIN}")
    return value


def _text(contents: dict[str, Any], name: str) -> str:
    if not isinstance(value := contents.get(name), str):
        raise ConfigError(f"its {name!r} is {value!r}, not text; {AGAIN}")
    return value


def _model(contents: dict[str, Any], name: str) -> TunedModel:
    value = contents.get(name)
    if not (
        isinstance(value, dict) and all(isinstance(value.get(field_name), str) for field_name in TunedModel._fields)
    ):
        raise ConfigError(f"its {name!r} lacks name or digest; {AGAIN}")
    return TunedModel(value["name"], value["digest"])
