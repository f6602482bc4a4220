"""Users of a server who ask for one streamed text after another; `make server-locust` runs them.

Beside the whole texts they report the time to the first piece and, per text, the milliseconds of a token.
"""

import itertools
import json
import time
import urllib.request

from locust import HttpUser, events, task

from drafttree.measure.prompt_sets import shipped_prompts

TOKENS = 64
PATIENCE = 120
"""Seconds that the server has to load its model."""

prompts = itertools.cycle(shipped_prompts())


@events.init.add_listener
def wait_until_ready(environment, **_):
    """Begin when the server serves."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            return urllib.request.urlopen(f"{environment.host}/ready").close()
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.5)


class Writer(HttpUser):
    """Asks for greedy texts of one length."""

    @task
    def text(self):
        """One text, read to its end."""
        body = {"prompt": next(prompts), "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
        began, first = time.perf_counter(), None
        with self.client.post("/v1/completions", json=body, stream=True, name="accepted", catch_response=True) as reply:
            reply.raise_for_status()
            pieces = []
            for line in reply.iter_lines():
                if line.startswith(b"data: {"):
                    first = first or time.perf_counter()
                    pieces += [choice["text"] for choice in json.loads(line[6:])["choices"]]
        self._report("first piece", first - began, len(pieces[0]))
        self._report("text", time.perf_counter() - began, sum(map(len, pieces)))
        self._report("per token", (time.perf_counter() - first) / TOKENS, 0)

    def _report(self, name, seconds, length):
        self.environment.events.request.fire(
            request_type="SSE", name=name, response_time=1000 * seconds, response_length=length, exception=None
        )
