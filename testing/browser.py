"""A page in headless Chromium, driven through its debugging pipe, without a package for it."""

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PIPED = 'exec "$0" "$@" 3<&0 4>&1 >/dev/null 2>&1'
"""Chromium reads commands from its file 3 and answers on 4."""
LOADED = "location.protocol == 'file:' && document.readyState == 'complete'"
"""Not so of the empty page that stands before it."""


class BrowserPage:
    """An open page.

    Args:
        page: file of the page.
        folder: for the browser's own files.
        width: of the window in pixels.
    """

    def __init__(self, page: Path, folder: Path, width: int) -> None:
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
        ]
        command = ["sh", "-c", PIPED, str(CHROMIUM), *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number, self._session = 0, {}
        target = self.send("Target.createTarget", url=page.as_uri())["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        deadline = time.monotonic() + 30
        while not self.evaluate(LOADED) and time.monotonic() < deadline:
            time.sleep(0.02)

    def __enter__(self) -> "BrowserPage":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, method: str, **params: object) -> dict[str, Any]:
        """The answer to a command of the DevTools protocol; empty where it is refused."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | self._session
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        while (answer := self._read()).get("id") != self._number:
            pass
        return answer.get("result", {})

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; None where there is none."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        return found.get("result", {}).get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key and let it go."""
        names = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **names)
        self.send("Input.dispatchKeyEvent", type="keyUp", **names)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        read = b""
        while (byte := self._process.stdout.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("Chromium ended")
            read += byte
        return json.loads(read)
