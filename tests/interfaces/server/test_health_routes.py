"""Health and readiness, as whoever starts servers and sends them requests asks for them."""

import pytest
from fastapi.testclient import TestClient

from drafttree.engine.batching.loop import BatchLoop
from drafttree.errors import EngineClosedError
from testing.held_server import held_app


@pytest.fixture
def held():
    found = held_app()
    yield found
    found.engine.close()


def statuses(held) -> tuple[int, int]:
    client = TestClient(held.app)
    return client.get("/health").status_code, client.get("/ready").status_code


def test_a_server_lives_and_takes_requests(held):
    assert statuses(held) == (200, 200)


@pytest.mark.parametrize("path", ["/", "/health", "/ready"])
def test_those_who_only_look_whether_somebody_answers_are_answered(held, path):
    assert TestClient(held.app).head(path).status_code == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_whose_engine_has_died_neither_lives_nor_takes_any(held, monkeypatch):
    def die(loop):
        raise SystemExit("told to die")

    monkeypatch.setattr(BatchLoop, "step", die)
    with pytest.raises(EngineClosedError, match="the engine died"):
        held.engine.submit([1]).result(20)
    assert statuses(held) == (503, 503)
