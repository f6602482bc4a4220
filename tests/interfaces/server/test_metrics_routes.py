"""Metrics tell what the engine has done and how long texts took."""

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

import drafttree
from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.metrics import _kind
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.policies import Talon
from testing import tiny
from testing.batches import TOKENIZER
from testing.held_server import COMPLETIONS, held_app, wait_until
from testing.toy import Table, ToyDrafter, ToyModel

LAW = Table(len(TOKENIZER), order=1, scale=6)
ASKED = [
    {"prompt": [1, 2], "max_tokens": 20, "temperature": 0},
    {"prompt": [3, 4, 5], "max_tokens": 12, "temperature": 1, "seed": 3, "n": 2},
]


def samples(client) -> dict[str, float]:
    """All samples, by name and labels but the model's."""
    found = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            found[sample.name + "".join(f"|{name}={value}" for name, value in labels.items())] = sample.value
            assert sample.labels.get("model_name", "toy") == "toy"
    return found


@pytest.fixture(scope="module")
def drafted():
    """The usages of some replies, the metrics behind them, and the engine."""
    model, drafter = ToyModel(LAW, LAW.vocab), ToyDrafter(LAW.blurred(0.5), LAW.vocab)
    decoder = Decoder(model, drafter, Talon(width=4, budget=8), tokenizer=TOKENIZER).with_costs(TOY_COSTS)
    app = create_app(decoder, ServerSettings("toy"))
    with TestClient(app) as client:
        usages = [client.post(COMPLETIONS, json=asked).json()["usage"] for asked in ASKED]
        return usages, samples(client), app.state.serving.engine


def test_what_was_drafted_and_accepted_is_that_of_the_replies(drafted):
    usages, found, _ = drafted
    details = [usage["completion_tokens_details"] for usage in usages]
    accepted = sum(each["accepted_prediction_tokens"] for each in details)
    rejected = sum(each["rejected_prediction_tokens"] for each in details)
    prefix = "drafttree:spec_decode_num"
    assert accepted > 0
    assert found[f"{prefix}_accepted_tokens_total"] == accepted
    assert found[f"{prefix}_draft_tokens_total"] == accepted + rejected
    by_position = [value for name, value in found.items() if name.startswith(f"{prefix}_accepted_tokens_per_pos_total")]
    assert sum(by_position) == accepted
    assert by_position == sorted(by_position, reverse=True)
    assert max(by_position) <= found[f"{prefix}_drafts_total"] <= found["drafttree:generation_tokens_total"]


def test_tokens_and_texts_are_counted(drafted):
    usages, found, _ = drafted
    assert found["drafttree:generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages) == 44
    assert found["drafttree:prompt_tokens_total"] == 2 + 2 * 3
    assert found["drafttree:request_success_total|finished_reason=length"] == 3


def test_every_text_has_its_times(drafted):
    _, found, _ = drafted
    assert found["drafttree:time_to_first_token_seconds_count"] == 3
    assert found["drafttree:e2e_request_latency_seconds_count"] == 3
    assert found["drafttree:request_queue_time_seconds_count"] == 3
    assert found["drafttree:grammar_compilation_time_seconds_count"] == 0  # none had one
    whole, first = (found[f"drafttree:{name}_seconds_sum"] for name in ("e2e_request_latency", "time_to_first_token"))
    between = found["drafttree:inter_token_latency_seconds_sum"]
    assert 0 < first < first + between <= whole
    assert 0 < found["drafttree:inter_token_latency_seconds_count"] <= 44 - 3


def test_what_the_engine_thinks_of_drafting_is_told(drafted):
    _, found, engine = drafted
    metrics = engine.metrics
    assert found["drafttree:draft_budget"] == metrics.rounds[-1].drafted
    assert found.get("drafttree:predicted_gain") == metrics.predicted_gain
    assert found.get("drafttree:measured_gain") == metrics.measured_gain
    (off,) = (value for name, value in found.items() if name.startswith("drafttree:drafting_off|"))
    assert off == (metrics.drafting_off is not None)


def test_what_runs_the_targets_passes_is_told():
    decoder = drafttree.load(tiny.build("gpt2"), "none", tokenizer=TOKENIZER)
    reason = "no NativeBackend or FusedBackend: layers of the family gpt2 are not known"
    with TestClient(create_app(decoder, ServerSettings("toy"))) as client:
        found = samples(client)
    assert found[f"drafttree:target_backend_info|backend=ModuleBackend|fallback_reason={reason}"] == 1


def test_reasons_are_told_without_their_figures():
    assert _kind("drafting was 0.87 times plain decoding at this batch") == (
        "drafting was N times plain decoding at this batch"
    )
    assert _kind("the drafter failed: token 17 at 0x7f") == "the drafter failed"


def test_running_and_waiting_texts_and_their_rows_are_told():
    held = held_app(max_batch=1)
    with TestClient(held.app) as client:
        for _ in range(3):
            held.engine.submit([1, 2], max_new_tokens=10**5)
        wait_until(lambda: held.engine.metrics.waiting == 2)
        held.model.go.clear()
        found = samples(client)
        held.model.go.set()
    assert (found["drafttree:num_requests_running"], found["drafttree:num_requests_waiting"]) == (1, 2)
    assert 0 < found["drafttree:kv_cache_usage_perc"] < 1


def test_a_text_that_nobody_wanted_any_more_is_counted_as_aborted():
    held = held_app()
    serving = held.app.state.serving
    with TestClient(held.app) as client:
        held.model.go.clear()
        aborted = held.engine.submit([1, 2], max_new_tokens=500)
        serving.metrics.watch(aborted, 0.0)
        aborted.cancel()
        held.model.go.set()
        aborted.result(20)
        assert samples(client)["drafttree:request_success_total|finished_reason=abort"] == 1


def test_two_applications_count_apart():
    first, second = held_app(), held_app()
    with TestClient(first.app) as client, TestClient(second.app) as other:
        client.post(COMPLETIONS, json={"prompt": [1], "max_tokens": 3})
        assert samples(client)["drafttree:generation_tokens_total"] == 3
        assert samples(other)["drafttree:generation_tokens_total"] == 0
