"""The Hugging Face hub: whether it answers, and the files of a repository.

If the hub does not answer, huggingface_hub waits and retries for each file, which takes minutes. So one short request
first tests whether the hub answers. Downloads of files have no time limit.
"""

import os
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue

from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import get_session

from drafttree.core.errors import ModelError
from drafttree.drafters.formats.checkpoints import MASK_FILE

DOWNLOADS = (("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", MASK_FILE), ("*.bin", "*.pt"))
NOT_DOWNLOADED = ("*/*", "consolidated*")
SECONDS = 8.0
"""Seconds within which the hub has to answer, unless `HF_HUB_ETAG_TIMEOUT` sets another limit."""
REMEMBERED = 60.0
"""Seconds for which the result of the test is remembered."""
_asked: dict[str, tuple[float, str]] = {}


def hub_answers() -> bool:
    """Whether the hub answers within `SECONDS`; True in huggingface_hub's offline mode, which makes no requests."""
    return constants.HF_HUB_OFFLINE or not silence()


def silence() -> str:
    """Why the hub does not answer, as text; empty if it answers."""
    endpoint = constants.ENDPOINT
    ask_time, reason = _asked.get(endpoint, (-REMEMBERED, ""))
    if time.monotonic() - ask_time >= REMEMBERED:
        reason = _ask(endpoint, _seconds())
        _asked[endpoint] = time.monotonic(), reason
    return reason and f"the hub {endpoint} {reason}"


def download(name: str) -> Path:
    """The local copy of a hub repository's configuration and weights; pickles only if it has no safetensors.

    If the hub does not answer, this is the cached copy.

    Raises:
        ModelError: If there is no such repository, or it is neither cached nor within reach.
    """
    folder = Path()
    answers = hub_answers()
    try:
        for patterns in DOWNLOADS:
            filters = {"allow_patterns": list(patterns), "ignore_patterns": list(NOT_DOWNLOADED)}
            folder = Path(snapshot_download(name, local_files_only=not answers, **filters))
            if any(folder.glob("*.safetensors")):
                break
    except Exception as error:
        raise _not_downloaded(name, error, answers) from error
    return folder


def _not_downloaded(name: str, error: Exception, answers: bool) -> ModelError:
    """The error for a failed download."""
    if not answers:
        return ModelError(f"cannot download {name!r}: {silence()}; check the connection or give a folder")
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, RepositoryNotFoundError):
        reason = "the hub has no such repository, or only for those who log in"
    return ModelError(f"cannot download {name!r} ({reason}); check the name or give a folder")


def download_file(name: str, file: str) -> Path:
    """The local copy of a file of a hub repository. If the hub does not answer, this is the cached copy.

    Raises:
        ModelError: If there is no such file, or it is neither cached nor within reach.
    """
    answers = hub_answers()
    try:
        return Path(hf_hub_download(name, file, local_files_only=not answers))
    except Exception as error:
        raise _not_downloaded(f"{name}:{file}", error, answers) from error


def _seconds() -> float:
    return float(constants.HF_HUB_ETAG_TIMEOUT) if "HF_HUB_ETAG_TIMEOUT" in os.environ else SECONDS


def _ask(endpoint: str, seconds: float) -> str:
    """Why an address does not answer, as text; empty if it answers.

    A thread makes the request, since a name look-up has no timeout. Its own timeout is twice as long as we wait. So its
    errors are never timeouts, whose class differs between HTTP libraries.

    """
    reasons = SimpleQueue[str]()

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=2 * seconds)
        except Exception as error:  # the HTTP library of huggingface_hub depends on its version
            reasons.put(f"cannot be reached ({error})")
        else:
            reasons.put("")

    threading.Thread(target=ask, name="drafttree hub", daemon=True).start()
    try:
        return reasons.get(timeout=seconds)
    except Empty:
        return f"does not answer within {seconds:g} seconds"
