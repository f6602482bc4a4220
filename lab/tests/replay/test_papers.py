"""The papers' files: what they name exists, and their numbers agree with one another as the papers' formulas say."""

import math
from statistics import fmean, median

import pytest

from drafttree.engine.compatibility import incompatibility
from drafttree.loading import make_policy, parse_policies, zoo
from drafttree.policies import Eagle
from drafttree.verifiers import VERIFIERS
from drafttree_lab.replay.paper import AUTOREGRESSIVE, Result
from drafttree_lab.replay.paper_files import paper_names, read_paper

PAPERS = ["dynatree-v1", "dynatree-v2", "talon", "traversal"]
RESULTS = [(name, key, result) for name in PAPERS for key, result in read_paper(name).results.items()]
RUN = [pytest.param(name, result, id=f"{name}/{key}") for name, key, result in RESULTS if not result.unavailable]
MODELS = ["Vicuna-13B", "DSL-8B", "Llama3-8B", "Qwen3-8B", "Qwen3-32B"]
DATA = {
    *(f"prompts/{name}" for name in ("mt_bench", "humaneval", "gsm8k", "alpaca", "cnn_dm", "qa", "spec_bench")),
    "wikitext2/wiki.test",
    "books/test",
}
VERIFIED = ("Tok.V", "Tra.V")
Interval = tuple[float, float]


def rows(paper: str, result: str, metric: str, model: str | None = None) -> dict[str, list[float]]:
    """The published rows of a metric, of all its blocks."""
    blocks = read_paper(paper).results[result].published
    found = [block for block in blocks if block.metric == metric and model in (None, block.model)]
    return {name: row for block in found for name, row in block.rows.items()}


def rounded(value: float, digits: int) -> Interval:
    """What a printed number may have been."""
    half = 0.5 * 10.0**-digits
    return value - half, value + half


def quotient(above: Interval, below: Interval) -> Interval:
    return above[0] / below[1], above[1] / below[0]


def is_same(one: Interval, other: Interval) -> bool:
    return one[0] <= other[1] + 1e-9 and other[0] <= one[1] + 1e-9


def specifications(paper: str, result: Result) -> set[tuple[str, str]]:
    """Methods of a result and their specifications, on every set and at every value of the axis."""
    methods = read_paper(paper).methods
    values = result.axis.values if result.axis else [None]
    return {
        (name, methods[name].policy_at(each, value))
        for name in result.methods
        if name != AUTOREGRESSIVE
        for each in result.sets or [""]
        for value in values
    }


def test_there_is_a_file_for_each_paper():
    assert paper_names() == PAPERS


def test_every_table_and_figure_has_an_entry():
    tables = {"dynatree-v1": 3, "dynatree-v2": 5, "talon": 3, "traversal": 4}
    figures = {"dynatree-v1": 3, "dynatree-v2": 9, "talon": 15, "traversal": 3}
    for name in PAPERS:
        found = {key.partition("-")[0].rstrip("abcdef") for key in read_paper(name).results} - {"sweep"}
        expected = {str(number + 1) for number in range(tables[name])}
        assert found == expected | {f"fig{number + 1}" for number in range(figures[name])}


@pytest.mark.parametrize(("paper", "result"), RUN)
def test_every_specification_is_of_a_policy_that_its_verifier_takes(paper, result):
    for name, spec in specifications(paper, result):
        (policy,) = parse_policies([spec]).values()
        verifier = read_paper(paper).methods[name].verifier
        assert verifier is None or incompatibility(policy, VERIFIERS[verifier]) is None


@pytest.mark.parametrize("paper", PAPERS)
def test_methods_differ_only_by_sets_and_values_of_an_axis(paper):
    found = read_paper(paper)
    values = {str(value) for result in found.results.values() if result.axis for value in result.axis.values}
    assert {place for method in found.methods.values() for place in method.policies} <= {*found.sets, *values}


@pytest.mark.parametrize("paper", PAPERS)
def test_stand_ins_are_embedded_drafters_and_prompts_are_of_known_files(paper):
    found = read_paper(paper)
    assert {role.stand_in for role in found.roles.values()} <= set(zoo.NAMES)
    assert {each.file for each in found.sets.values()} <= DATA


@pytest.mark.parametrize(("paper", "result"), RUN)
def test_a_result_runs_something_and_shows_what_its_claims_and_numbers_are_of(paper, result):
    assert result.methods
    assert result.metrics
    assert result.sets or result.kind == "expansion"
    judged = {claim.metric for claim in result.claims if claim.kind not in ("not_comparable", "bound")}
    assert judged <= {*result.metrics, "rounds_per_second"}
    derived = {"gain", "speed_gain", "memory_gain"}
    assert {block.metric for block in result.published} <= {*result.metrics, *derived}


def test_claims_have_names_of_their_own_and_the_main_ones_are_these():
    for _, _, result in RESULTS:
        assert len({claim.id for claim in result.claims}) == len(result.claims)
    main = [f"{name}/{key} {claim.id}" for name, key, result in RESULTS for claim in result.claims if claim.main]
    assert main == [
        "dynatree-v1/1 tree-over-linear",
        "dynatree-v2/1 dynatree-over-fixed",
        "dynatree-v2/1 fixed-over-linear",
        "dynatree-v2/4 breadth-and-depth",
        "dynatree-v2/4 history",
        "talon/1 talon-over-eagle",
        "talon/1 lower-delta",
        "talon/fig7 one-over-none",
        "traversal/2 chain",
        "traversal/2 binary",
        "traversal/2 eagle",
        "traversal/fig3a grows-with-depth",
        "traversal/fig3b grows-with-size",
        "traversal/4 chain-by-temperature",
        "traversal/4 binary-by-temperature",
        "traversal/4 eagle-by-temperature",
    ]


def test_the_sweep_has_450_points():
    sweep = read_paper("dynatree-v1").results["sweep"]
    assert sweep.axis
    assert sweep.second_axis
    assert len(sweep.axis.values) * len(sweep.second_axis.values) == 450


@pytest.mark.parametrize(("paper", "result"), [("dynatree-v1", "1"), ("dynatree-v1", "3"), ("dynatree-v2", "1")])
def test_speedups_are_ratios_of_speeds(paper, result):
    speeds, speedups = rows(paper, result, "tokens_per_second"), rows(paper, result, "speedup")
    for method, ratios in speedups.items():
        for speed, plain, ratio in zip(speeds[method], speeds[AUTOREGRESSIVE], ratios, strict=True):
            assert is_same(quotient(rounded(speed, 1), rounded(plain, 1)), rounded(ratio, 2)), (method, ratio)


@pytest.mark.parametrize(
    ("result", "methods"),
    [("2", ["Tree D=4", "DynaTree"]), ("4", ["Fixed Tree D=5 B=2", "DynaTree without history", "DynaTree"])],
)
def test_speedups_without_a_baseline_share_one(result, methods):
    paper = "dynatree-v1" if result == "2" else "dynatree-v2"
    speeds, ratios = rows(paper, result, "tokens_per_second"), rows(paper, result, "speedup")
    baselines = [quotient(rounded(speeds[name][0], 1), rounded(ratios[name][0], 2)) for name in methods]
    assert max(low for low, _ in baselines) <= min(high for _, high in baselines)


def test_gains_over_the_fixed_tree_are_of_speeds():
    speeds, gains = rows("dynatree-v2", "4", "tokens_per_second"), rows("dynatree-v2", "4", "speed_gain")
    for name, (gain,) in gains.items():
        found = quotient(rounded(speeds[name][0], 1), rounded(speeds["Fixed Tree D=5 B=2"][0], 1))
        assert is_same(found, (1 + (gain - 0.05) / 100, 1 + (gain + 0.05) / 100))


def test_tokens_per_round_are_1500_over_rounds():
    rounds, taus = rows("dynatree-v2", "3", "rounds"), rows("dynatree-v2", "3", "tau")
    for name, row in rounds.items():
        for number, tau in zip(row, taus[name], strict=True):
            assert is_same((1500 / number, 1500 / number), rounded(tau, 2))


def test_dynatrees_acceptance_is_its_path_over_the_levels_it_counts():
    paths, rates = rows("dynatree-v2", "3", "path"), rows("dynatree-v2", "3", "accept")
    for name in ("Linear Spec", "Fixed Tree", "DynaTree"):
        for each, path, rate in zip(("WikiText-2", "PG-19"), paths[name], rates[name], strict=True):
            policy = make_policy(read_paper("dynatree-v2").methods[name].policy_at(each))
            levels = {"chain": "depth", "fixed": "depth", "dynatree": "base_depth"}
            counted = getattr(policy, levels[type(policy).__name__.lower()]) + (name != "Linear Spec")
            assert is_same((rounded(path, 2)[0] / counted, rounded(path, 2)[1] / counted), rounded(rate, 3))


def test_time_per_token_is_the_inverse_of_speed_but_for_averaging():
    speeds, times = rows("dynatree-v2", "1", "tokens_per_second"), rows("dynatree-v2", "2", "tpot")
    for name, row in times.items():
        for milliseconds, speed in zip(row, speeds[name], strict=True):
            assert speed * milliseconds / 1000 == pytest.approx(1, abs=0.08)


def test_peak_memory_has_its_average_and_its_change():
    peaks, changes = rows("dynatree-v2", "5", "peak_memory"), rows("dynatree-v2", "5", "memory_gain")
    for name, (first, second, average) in peaks.items():
        assert average == pytest.approx((first + second) / 2, abs=0.051)
        change = 100 * ((first + second) / sum(peaks[AUTOREGRESSIVE][:2]) - 1)
        assert changes[name][0] == pytest.approx(change, abs=0.006)


@pytest.mark.parametrize("result", ["1", "3"])
def test_talon_is_as_fast_as_eagle_or_faster_in_every_cell_and_no_speedup_exceeds_tau(result):
    for model in MODELS:
        taus, speedups = rows("talon", result, "tau", model), rows("talon", result, "speedup", model)
        assert all(ours >= theirs for ours, theirs in zip(speedups["TALON"], speedups["EAGLE-3"], strict=True))
        for name, row in speedups.items():
            assert all(speedup < tau for speedup, tau in zip(row, taus[name], strict=True))


@pytest.mark.parametrize("result", ["1", "3"])
@pytest.mark.parametrize("model", MODELS)
def test_eagles_overhead_is_constant_as_its_draft_passes_are(result, model):
    taus, speedups = rows("talon", result, "tau", model)["EAGLE-3"], rows("talon", result, "speedup", model)["EAGLE-3"]
    overheads = [tau / speedup for tau, speedup in zip(taus, speedups, strict=True)][:-1]
    assert all(overhead == pytest.approx(median(overheads), rel=0.05) for overhead in overheads)


@pytest.mark.parametrize("model", MODELS)
def test_talons_draft_passes_follow_from_its_table_by_equation_7(model):
    taus, speedups, deltas = (rows("talon", "1", metric, model) for metric in ("tau", "speedup", "delta"))
    (passes,) = rows("talon", "fig6", "delta")["EAGLE-3"]
    for column, (ours, theirs) in enumerate(zip(deltas["TALON"], deltas["EAGLE-3"], strict=True)):
        talon, eagle = (taus[name][column] / speedups[name][column] - 1 for name in ("TALON", "EAGLE-3"))
        assert theirs == passes
        assert ours == pytest.approx(passes * talon / eagle, abs=0.005)


@pytest.mark.parametrize("model", MODELS)
def test_the_cost_of_eagles_draft_pass_solves_the_speed_law(model):
    taus, speedups = (rows("talon", "1", metric, model)["EAGLE-3"] for metric in ("tau", "speedup"))
    (delta,) = rows("talon", "fig6", "delta")["EAGLE-3"]
    costs = [(tau / speedup - 1) / delta for tau, speedup in zip(taus, speedups, strict=True)][:-1]
    assert read_paper("talon").models[model].draft_pass["EAGLE-3"] == pytest.approx(fmean(costs), abs=0.001)
    assert make_policy(read_paper("talon").methods["EAGLE-3"].policy) == Eagle(depth=int(delta), top_k=10, budget=60)


@pytest.mark.parametrize(("role", "delta"), [("Medusa", 1), ("Hydra", 4)])
def test_the_costs_of_heads_solve_the_speed_law(role, delta):
    taus, speedups = (rows("talon", "1", metric, "Vicuna-13B")[role] for metric in ("tau", "speedup"))
    costs = [(tau / speedup - 1) / delta for tau, speedup in zip(taus, speedups, strict=True)][:-1]
    assert read_paper("talon").models["Vicuna-13B"].draft_pass[role] == pytest.approx(fmean(costs), abs=0.001)


@pytest.mark.parametrize(("table", "model"), [("2", "Llama3.1-8B"), ("3", "Llama2-7B")])
def test_the_costs_of_traversals_passes_solve_the_speed_law(table, model):
    taus = rows("traversal", table, "tau")
    speeds = rows("traversal", f"{table}-speed", "tokens_per_second")
    costs = read_paper("traversal").models[model]

    def rounds(shape):
        return [taus[f"{shape} {each}"][-1] / (speeds[f"{shape} {each}"][0] / speeds["AR"][0]) for each in VERIFIED]

    draft = fmean((cost - 1) / 5 for cost in rounds("Chain"))
    assert costs.draft_pass["Draft model"] == pytest.approx(draft, abs=0.001)
    for shape, nodes in (("EAGLE", 1 + 25), ("Binary", 2**6 - 1)):
        assert costs.target_pass[nodes] == pytest.approx(fmean(rounds(shape)) - 5 * draft, abs=0.002)


def test_the_costs_of_dynatrees_draft_pass_solve_the_speed_law():
    rebuild = read_paper("dynatree-v2").models["Pythia-2.8B"].round
    own = read_paper("dynatree-v1").models["Pythia-2.8B"]
    assert own.round == rebuild
    share, speedup = (rows("dynatree-v1", "1", metric)["Linear K=6"][0] for metric in ("node_acceptance", "speedup"))
    assert own.draft_pass["Pythia"] == pytest.approx((6 * share / speedup - 1 - rebuild) / 6, abs=0.005)
    taus, speedups = rows("dynatree-v2", "3", "tau")["Linear Spec"], rows("dynatree-v2", "1", "speedup")["Linear Spec"]
    deep, shallow = (tau / ratio for tau, ratio in zip(taus, speedups, strict=True))
    draft = (deep - shallow) / (8 - 5)
    assert read_paper("dynatree-v2").models["Pythia-2.8B"].draft_pass["Pythia"] == pytest.approx(draft, abs=0.001)
    assert rebuild == pytest.approx(shallow - 1 - 5 * draft, abs=0.002)


@pytest.mark.parametrize("paper", ["dynatree-v1", "dynatree-v2"])
def test_larger_target_passes_of_dynatree_cost_the_mean_of_traversals_pairs(paper):
    curves = [model.target_pass for model in read_paper("traversal").models.values()]
    (own,) = (model.target_pass for model in read_paper(paper).models.values())
    assert own == {size: pytest.approx(fmean(curve[size] for curve in curves), abs=0.001) for size in own}


@pytest.mark.parametrize(
    ("result", "model", "method", "column", "speedup"),
    [
        ("1", "Vicuna-13B", "TALON", "HumanEval", 5.16),
        ("1", "Vicuna-13B", "EAGLE-3", "HumanEval", 4.77),
        ("1", "Qwen3-8B", "TALON", "CNN/DM", 2.30),
        ("1", "Qwen3-8B", "EAGLE-3", "CNN/DM", 1.95),
        ("1", "Qwen3-8B", "TALON", "GSM8K", 2.67),
        ("1", "Qwen3-8B", "EAGLE-3", "GSM8K", 2.37),
        ("3", "Qwen3-8B", "TALON", "HumanEval", 2.51),
        ("3", "Qwen3-8B", "EAGLE-3", "HumanEval", 2.20),
        ("3", "Vicuna-13B", "TALON", "HumanEval", 3.97),
    ],
)
def test_the_speedups_that_talons_text_repeats_are_in_its_tables(result, model, method, column, speedup):
    found = next(
        block
        for block in read_paper("talon").results[result].published
        if block.metric == "speedup" and block.model == model
    )
    assert found.rows[method][found.columns.index(column)] == speedup


@pytest.mark.parametrize("result", ["2", "3"])
def test_the_averages_of_traversals_tables_are_of_its_tasks(result):
    for row in rows("traversal", result, "tau").values():
        assert is_same((fmean(row[:-1]) - 0.005, fmean(row[:-1]) + 0.005), rounded(row[-1], 2))


@pytest.mark.parametrize(
    ("result", "metric", "gain", "digits"),
    [
        ("2", "tau", "gain", 2),
        ("3", "tau", "gain", 2),
        ("4", "tau", "gain", 2),
        ("2-speed", "tokens_per_second", "speed_gain", 1),
        ("3-speed", "tokens_per_second", "speed_gain", 1),
    ],
)
def test_traversals_gains_are_ratios_of_its_numbers(result, metric, gain, digits):
    values, gains = rows("traversal", result, metric), rows("traversal", result, gain)
    for name, row in gains.items():
        pairs = zip(values[name], values[name.replace("Tra.V", "Tok.V")], row, strict=True)
        for ours, theirs, percent in pairs:
            ratio = quotient(rounded(ours, digits), rounded(theirs, digits))
            assert is_same(ratio, (1 + (percent - 0.05) / 100, 1 + (percent + 0.05) / 100)), (name, percent)


def test_traversals_table_by_temperature_ends_with_the_averages_of_its_table_by_task():
    for metric in ("tau", "gain"):
        by_task = rows("traversal", "2", metric)
        assert {name: row[-1] for name, row in rows("traversal", "4", metric).items()} == {
            name: row[-1] for name, row in by_task.items()
        }


def test_traversals_average_gains_span_what_its_text_says():
    gains = [row[-1] for result in ("2", "3") for row in rows("traversal", result, "gain").values()]
    assert (min(gains), max(gains)) == (2.2, 5.7)


def test_every_number_is_positive_and_shares_alone_are_below_one():
    shares = {"accept", "node_acceptance", "drafted_share"}
    for _, _, result in RESULTS:
        for block in result.published:
            numbers = [number for row in block.rows.values() for number in row]
            assert all(number >= 0 and math.isfinite(number) for number in numbers)
            if block.metric in shares:
                assert max(numbers) < 1.1
            elif block.metric in {"speedup", "tau", "tokens_per_second", "rounds", "path", "delta"}:
                assert min(numbers) >= 1


def test_errors_are_smaller_than_what_they_are_of():
    for _, _, result in RESULTS:
        for block in result.published:
            for name, row in block.errors.items():
                assert all(0 < error < number for error, number in zip(row, block.rows[name], strict=True))
