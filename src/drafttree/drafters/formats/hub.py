"""The Hugging Face hub: whether it answers, and the files of a repository.

huggingface_hub waits for a silent hub at every file and tries again, which takes minutes. So the hub is asked once
whether it answers at all, and only then for files, which may take as long as they do.
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
"""Time in which the hub has to answer anything, where `HF_HUB_ETAG_TIMEOUT` does not set another."""
REMEMBERED = 60.0
"""Seconds for which it is not asked again."""
_asked: dict[str, tuple[float, str]] = {}


def hub_answers() -> bool:
    """Whether the hub answers within `SECONDS`; true in huggingface_hub's offline mode, which asks no hub."""
    return constants.HF_HUB_OFFLINE or not silence()


def silence() -> str:
    """The reason that a message gives where the hub does not answer; empty where it does."""
    endpoint = constants.ENDPOINT
    ask_time, reason = _asked.get(endpoint, (-REMEMBERED, ""))
    if time.monotonic() - ask_time >= REMEMBERED:
        reason = _ask(endpoint, _seconds())
        _asked[endpoint] = time.monotonic(), reason
    return reason and f"the hub {endpoint} {reason}"


def download(name: str) -> Path:
    """The local copy of a hub repository's configuration and weights; pickles only where it has no safetensors.

    Where the hub does not answer, it is the copy that is there already.

    Raises:
        ModelError: there is no such repository, or it is neither cached nor within reach.
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
    """What to tell of a download that failed."""
    if not answers:
        return ModelError(f"cannot download {name!r}: {silence()}; check the connection or give a folder")
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, RepositoryNotFoundError):
        reason = "the hub has no such repository, or only for those who log in"
    return ModelError(f"cannot download {name!r} ({reason}); check the name or give a folder")


def download_file(name: str, file: str) -> Path:
    """The local copy of one file of a hub repository; the one that is there already where the hub does not answer.

    Raises:
        ModelError: there is no such file, or it is neither cached nor within reach.
    """
    answers = hub_answers()
    try:
        return Path(hf_hub_download(name, file, local_files_only=not answers))
    except Exception as error:
        raise _not_downloaded(f"{name}:{file}", error, answers) from error


def _seconds() -> float:
    return float(constants.HF_HUB_ETAG_TIMEOUT) if "HF_HUB_ETAG_TIMEOUT" in os.environ else SECONDS


def _ask(endpoint: str, seconds: float) -> str:
    """Why an address answers nothing, empty where it does.

    It is asked by a thread, as looking up a name has no timeout of its own. The thread has more time than is waited for
    it, so an error of its own is never a time-out, which has another class in each HTTP library.
    """
    reasons = SimpleQueue[str]()

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=2 * seconds)
        except Exception as error:  # of httpx or httpx2, whichever this huggingface_hub is built on
            reasons.put(f"cannot be reached ({error})")
        else:
            reasons.put("")

    threading.Thread(target=ask, name="drafttree hub", daemon=True).start()
    try:
        return reasons.get(timeout=seconds)
    except Empty:
        return f"does not answer within {seconds:g} seconds"
