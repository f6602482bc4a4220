"""Write the tables of performance.md and the README's figure of a GPU, from figures.json (`make figures`)."""

from collections.abc import Iterator, Mapping
from typing import Any

from figures import ROOT, entries
from marked_parts import table, with_parts

PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
POLICIES = {"chain": "chain", "talon:budget=16,width=4": "TALON (16, 4)", "dynatree": "DynaTree", "auto": "auto"}
"""Policies of the first table, and what its columns are called."""
PASSES = ("passes-float32", "passes-bfloat16", "passes-int8")
OURS = "drafttree"
TERMS = ("method", "tau", "delta", "v", "c", "h", "law", "R [95 %]", "tokens/s", "texts of plain decoding")


def tables(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The parts of the page by name; those of benches that never ran are missing."""
    makers = {
        "methods": _methods_tables,
        "sampled": _terms_table,
        "contexts": _contexts_table,
        "batch": _batch_table,
        "serve": _serve_table,
        "loading": _loading_table,
        "gpu": _gpu_table,
    }
    parts = {
        name: _source(measured[name]) + maker(measured[name]["report"])
        for name, maker in makers.items()
        if name in measured
    }
    if all(name in measured for name in PASSES):
        commands = "".join(_source(measured[name]) for name in PASSES)
        parts["passes"] = commands + _passes_table({name: measured[name]["report"] for name in PASSES})
    if "gpu" in measured:
        parts["readme-gpu"] = _gpu_sentence(measured["gpu"])
    return parts


def _source(entry: Mapping[str, Any]) -> str:
    """The command, the machine and the date of a measurement."""
    machine = entry["machine"]
    hardware = machine["processor"]
    if "instructions" in machine:
        hardware += f" ({machine['instructions']}, {machine['threads']} threads)"
    return f"    {entry['command']}\n\n{hardware}, {entry['date']}.\n\n"


def _methods_tables(report: Mapping[str, Any]) -> str:
    rows = {row["method"]: row for row in _of_all_texts(report)}
    without_loops = {row["method"]: row for row in report["rows"] if row["group"] == "not looping"}
    drafters = dict.fromkeys(method.partition("|")[0] for method in rows if "|" in method)
    speeds = [
        [f"`{drafter}`", *(_ratio(rows.get(f"{drafter}|{policy}")) for policy in POLICIES)] for drafter in drafters
    ]
    best = [
        max((row for method, row in rows.items() if method.startswith(f"{drafter}|")), key=_mean_ratio)
        for drafter in drafters
    ]
    peers = [row for method, row in rows.items() if "|" not in method and method != "plain"]
    terms = [[*_terms(row), _ratio(without_loops.get(row["method"]))] for row in (rows["plain"], *best, *peers)]
    return (
        "R, with its 95 % interval:\n\n"
        + table(["drafter", *POLICIES.values()], speeds)
        + "\nThe fastest policy of each drafter, and other programs:\n\n"
        + table([*TERMS, "R without looping texts"], terms)
    )


def _terms_table(report: Mapping[str, Any]) -> str:
    return table(TERMS, [_terms(row) for row in _of_all_texts(report)])


def _of_all_texts(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows over all texts, not those over the texts that loop, or do not, alone."""
    every_text = report["rows"][0]["group"]
    return [row for row in report["rows"] if row["group"] == every_text]


def _terms(row: Mapping[str, Any]) -> list[str]:
    figures = [_number(row.get(name), 2) for name in ("tau", "delta", "v", "c", "h", "R law")]
    drafter, _, policy = row["method"].partition("|")
    name = f"`{drafter}`, {POLICIES.get(policy, policy)}" if policy else drafter
    return [name, *figures, _ratio(row), _number(row["tokens/s"], 1), row.get("same text") or ""]


def _passes_table(reports: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, report in reports.items():
        dtype = name.removeprefix("passes-")
        for times in report["machine"]["passes"]:
            program = times["passes"].partition(",")[0]
            milliseconds = [*times["ms"].values()]
            rows.append([f"{dtype}, {program}", *(_number(value, 1) for value in milliseconds)])
            if program == OURS:
                rows.append([f"{dtype}, v", *(_number(value / milliseconds[0], 2) for value in milliseconds)])
    numbers = next(iter(reports.values()))["machine"]["passes"][0]["ms"]
    return table(["ms of a pass over so many rows", *numbers], rows)


def _contexts_table(report: Mapping[str, Any]) -> str:
    passes = report["machine"]["passes"]
    rows = [[times["passes"], *(_number(value, 1) for value in times["ms"].values())] for times in passes]
    reading = [[row["program"], *(_number(value, 2) for value in row["s"].values())] for row in report["reading"]]
    lengths = next(iter(report["reading"]), {"s": {}})["s"]
    return (
        table(["ms of a pass over so many rows", *passes[0]["ms"]], rows)
        + "\n"
        + table(["seconds to read a prompt of so many tokens", *lengths], reading)
    )


def _batch_table(report: Mapping[str, Any]) -> str:
    header = [
        "texts at once",
        "plain tokens/s",
        "R [95 %]",
        "law",
        "over the best fixed number of nodes",
        "drafted nodes of a text and round",
    ]
    rows = [
        [
            row["batch"],
            _number(row["plain/s"], 1),
            _interval(row["R"]),
            _number(row["R law"], 2),
            _interval(row["over best fixed"]),
            _number(row["k"], 1),
        ]
        for row in report["rows"]
    ]
    different = len(report["differences"])
    same = f"\n{report['texts'] - different} of {report['texts']} texts are those of plain decoding.\n"
    return table(header, rows) + same


def _serve_table(report: Mapping[str, Any]) -> str:
    header = [
        "clients",
        "tokens/s",
        "without drafts",
        "ratio [95 %]",
        "ms to the first token, 50 / 95 %",
        "without drafts",
        "ms per token, 50 / 95 %",
        "without drafts",
    ]
    rows = [list(_serve_cells(row)) for row in report["rows"]]
    return table(header, rows)


def _serve_cells(row: Mapping[str, Any]) -> Iterator[str]:
    drafted, plain = row["ways"]["speculative"], row["ways"]["no drafter"]
    yield row["clients"]
    for way in (drafted, plain):
        yield _number(way["tokens_per_second"], 1)
    yield _interval(row["ratio"])
    for times in ("first_token", "next_token"):
        for way in (drafted, plain):
            yield f"{way[times]['50'] * 1000:.0f} / {way[times]['95'] * 1000:.0f}"


def _loading_table(report: Mapping[str, Any]) -> str:
    rows = [
        [
            row["model"],
            row["precision"],
            _number(row["loaded"], 1),
            _number(row["first_token"], 1),
            _number(row["peak_bytes"] / row["weights_bytes"], 2),
        ]
        for row in report["rows"]
    ]
    return table(["model", "precision", "seconds to load", "to the first token", "peak memory over weights"], rows)


def _gpu_table(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    notes = [f"A copy moves {machine['bandwidth'] / 1e9:,.0f} GB/s."] if "bandwidth" in machine else []
    for times in machine.get("passes", []):
        milliseconds = ", ".join(f"{value:.2f} ({nodes})" for nodes, value in times["ms"].items())
        notes.append(f"Milliseconds of a pass by nodes, {times['passes']}: {milliseconds}.")
    return _terms_table(report) + "\n" + "\n".join([*notes, ""])


def _gpu_sentence(entry: Mapping[str, Any]) -> str:
    row = next(row for row in entry["report"]["rows"] if row["method"].endswith("talon:budget=16,width=4"))
    return (
        f"On an {entry['machine']['processor']}, at the cost of an 8 B model, TALON (16, 4) with lookup and an EAGLE-3 "
        f"head is {row['R']['mean']:.2f} times as fast as plain decoding (95 % interval {row['R']['low']:.2f} to "
        f"{row['R']['high']:.2f}, {entry['date']}).\n"
    )


def _mean_ratio(row: Mapping[str, Any]) -> float:
    return row["R"]["mean"] if row["R"] else 0.0


def _ratio(row: Mapping[str, Any] | None) -> str:
    return _interval(row["R"]) if row and row.get("R") else ""


def _interval(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return ""
    if value["low"] is None:
        return f"{value['mean']:.2f}"
    return f"{value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def main() -> None:
    parts = tables(entries())
    for document in (PAGE, README):
        document.write_text(with_parts(document.read_text(), "figures", parts))


if __name__ == "__main__":
    main()
