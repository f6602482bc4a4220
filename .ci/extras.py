"""Install each extra alone in a new environment and run its main command: `python .ci/extras.py [EXTRA ...]`.

The wheels in `dist` are installed, so `make dist` comes first. A line for each extra says what came of it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from environment import Environment

FOLDER = Path(".venv-extras")
PROMPT = "The old man looked at the sea"
PORT = 8791
ADDRESS = f"http://127.0.0.1:{PORT}"
SECONDS = 300
"""In which a server or a worker has to be there."""

Use = Callable[[Environment, Path], None]


def command(*arguments: str) -> Use:
    """A use of an extra that is one command of drafttree."""

    def use(environment: Environment, folder: Path) -> None:
        environment.run("drafttree", *arguments, cwd=folder)

    return use


def use_native(environment: Environment, folder: Path) -> None:
    """A pass runs in one call."""
    check = "import drafttree; target = drafttree.load('embedded', 'none').target; print(target); "
    environment.run("python", "-c", check + "assert 'Native' in repr(target)", cwd=folder)


def use_serve(environment: Environment, folder: Path) -> None:
    """A server writes a text and ends when it is told to."""
    server = environment.start("drafttree", "serve", "--port", str(PORT), cwd=folder)
    try:
        _wait_until_healthy(server)
        body = json.dumps({"prompt": PROMPT, "max_tokens": 8}).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{ADDRESS}/v1/completions", body, headers)) as reply:
            print(json.load(reply)["choices"][0]["text"])
    finally:
        server.send_signal(signal.SIGTERM)
        exit_code = server.wait(timeout=SECONDS)
    assert exit_code == 0, exit_code


def _wait_until_healthy(server: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(urllib.error.URLError):
            urllib.request.urlopen(f"{ADDRESS}/health").close()
            return
        time.sleep(0.5)
    raise AssertionError(f"the server is not healthy after {SECONDS} seconds")


def use_gguf(environment: Environment, folder: Path) -> None:
    """A model in a GGUF file, which the tests' writer has made of the embedded one, writes a text."""
    write = (
        "import sys, torch; from drafttree.loading import load_model; from testing import gguf_files; "
        "model = load_model('embedded', torch.float32, torch.device('cpu')); "
        "gguf_files.write(model, sys.argv[1], 'Q8_0')"
    )
    file = folder / "model.gguf"
    subprocess.run([sys.executable, "-c", write, file], check=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    environment.run("drafttree", "inspect", file, cwd=folder)
    environment.run("drafttree", "generate", PROMPT, "--target", file, "--max-new-tokens", "8", cwd=folder)


def use_ray(environment: Environment, folder: Path) -> None:
    """A batch of two prompts is written by Ray's workers."""
    (folder / "prompts.jsonl").write_text(f'{{"prompt": "{PROMPT}"}}\n' * 2)
    arguments = ["batch", "prompts.jsonl", "texts.jsonl", "--ray", "--workers", "1", "--max-new-tokens", "8"]
    environment.run("drafttree", *arguments, cwd=folder)
    assert len((folder / "texts.jsonl").read_text().splitlines()) == 2


def use_dynamo(environment: Environment, folder: Path) -> None:
    """A worker joins a fleet on this machine and leaves it when it is told to."""
    log = folder / "worker.log"
    with log.open("w") as stderr:
        discovery = str(folder / "discovery")
        worker = environment.start("drafttree", "worker", "embedded", cwd=folder, stderr=stderr, DYN_FILE_KV=discovery)
    deadline = time.monotonic() + SECONDS
    try:
        while " serves " not in log.read_text():
            assert worker.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=SECONDS)


USES: dict[str, Use] = {
    "": command("generate", PROMPT, "--max-new-tokens", "8"),
    "native": use_native,
    "gguf": use_gguf,
    "grammar": command("generate", PROMPT, "--max-new-tokens", "8", "--regex", "[a-z ]{1,20}"),
    "report": command("trace", PROMPT, "--max-new-tokens", "8", "--output", "trace.html"),
    "serve": use_serve,
    "ray": use_ray,
    "dynamo": use_dynamo,
    "lab": command("bench", "methods", "--limit", "1", "--max-new-tokens", "8", "--policies", "chain"),
}


def main(extras: list[str]) -> None:
    """Try the extras, all of them where none is named."""
    wheels = [path.absolute() for path in Path("dist").glob("*.whl")]
    library = next(path for path in wheels if path.name.startswith("drafttree-"))
    failed = []
    for extra in extras or USES:
        begun = time.monotonic()
        environment = Environment(FOLDER)
        with tempfile.TemporaryDirectory() as name:
            try:
                if extra == "lab":
                    environment.install(library, "./lab")
                else:
                    wanted = f"drafttree[{extra}] @ {library.as_uri()}" if extra else library
                    environment.install(wanted, "--find-links", "dist")
                USES[extra](environment, Path(name))
                outcome = "works"
            except (subprocess.CalledProcessError, AssertionError, OSError) as error:
                outcome = f"FAILS: {error}"
                failed.append(extra)
        print(f"extra {extra or 'none'}: {outcome} ({time.monotonic() - begun:.0f} s)", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
