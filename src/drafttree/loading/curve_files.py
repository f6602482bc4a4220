"""Files of cost curves, as `CostCurve.to_json` has them."""

import json
from pathlib import Path
from typing import Any

from drafttree.core.cost_curve import CostCurve, parse_cost_curve
from drafttree.core.errors import ConfigError, InputError


def read_cost_curve(path: str | Path) -> CostCurve:
    """The cost curve in a file.

    Raises:
        InputError: it cannot be read, is no JSON, or holds no curve; the message names the file and what is wrong.
    """
    try:
        return parse_cost_curve(read_json_file(path))
    except ConfigError as error:
        raise InputError(f"{path}: {error}") from None


def read_json_file(path: str | Path) -> Any:
    """What a file of JSON holds.

    Raises:
        InputError: it cannot be read or is no JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON ({error.msg}, line {error.lineno})") from None
    except RecursionError:
        raise InputError(f"{path}: not JSON that can be used (nested too deeply)") from None
