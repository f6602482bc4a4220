"""The manifest's server, started as it says, answers its probes and ends within its grace."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from testing.held_server import COMPLETIONS, wait_until

MANIFEST = Path(__file__).parents[3] / "docs/fleet/server.yaml"
KEY = {"Authorization": "Bearer k"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM to a child")
def test_the_probes_of_a_server_that_starts_runs_and_ends(request):
    deployment, service = yaml.safe_load_all(MANIFEST.read_text())
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    arguments = dict(zip(container["args"][::2], container["args"][1::2], strict=False))
    ports = {container["ports"][0]["containerPort"], service["spec"]["ports"][0]["targetPort"]}
    assert ports == {int(arguments["--port"])}
    assert float(arguments["--grace"]) < pod["terminationGracePeriodSeconds"]
    assert arguments["--allowed-hosts"] == service["metadata"]["name"]
    command = [sys.executable, "-m", *container["command"], *container["args"]]
    command[command.index("--port") + 1] = "0"
    environment = {**os.environ, container["env"][0]["name"]: "k"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    request.addfinalizer(process.kill)
    assert process.stderr
    port = re.search(r"http://\S+:([0-9]+)", process.stderr.readline())
    assert port
    with httpx.Client(base_url=f"http://127.0.0.1:{port[1]}", headers={"Host": "drafttree"}) as client:

        def probe(kind: str) -> int:
            asked = container[kind]
            return client.get(asked["httpGet"]["path"], timeout=asked.get("timeoutSeconds", 1)).status_code

        wait_until(lambda: probe("startupProbe") == 200)
        assert (probe("livenessProbe"), probe("readinessProbe")) == (200, 200)
        body = {"prompt": "Once", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
        with client.stream("POST", COMPLETIONS, json=body, headers=KEY) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: probe("readinessProbe") == 503)
            assert probe("livenessProbe") == 200
            assert "data: [DONE]" in list(lines)
    out, err = process.communicate(timeout=pod["terminationGracePeriodSeconds"])
    assert process.returncode == 0, err
    assert f'"POST {COMPLETIONS}" 200 ' in out
