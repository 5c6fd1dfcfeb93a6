import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.sim.steps import StepRecorder

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from evaluate_cases import FULL, SEARCHED, Case, Sizes, all_cases, chunk_cases, grid_cases, model_cases, with_best_chunk
from evaluate_loss import loss_split
from evaluate_plots import bars, heat_map, uses
from evaluate_report import write_report
from evaluate_run import best_chunks, run_all, run_case, run_cases, workload_of


@pytest.fixture(scope="module")
def case():
    return Case("main", "#3", 1.4, 0.05, 2_000, "depth-first", max_step_tokens=2048, mean_output=1024, keep_steps=True)


def test_losses_add_up_to_the_distance_from_the_reachable_time(case):
    row = run_case(case)
    assert sum(row["loss"].values()) == pytest.approx(row["result"]["seconds"] - row["result"]["t_reachable_s"])
    assert min(row["loss"][part] for part in ("ramp", "wrong_bottleneck", "tail")) > -1e-9


def test_cases_with_the_same_steps_are_timed_as_if_each_had_run(case):
    others = [replace(case, engine="sequential"), replace(case, policy="depth-first", interference=0.35, keep_steps=False)]
    clocks = {"schedule_ms_mean", "schedule_ms_p99", "tree_s", "plan_s", "simulation_s"}
    for row, other in zip(run_cases([case, *others])[1:], others, strict=True):
        alone = run_case(other)
        assert row["case"] == alone["case"]
        assert row.get("loss", {}) == pytest.approx(alone.get("loss", {}))
        for name in row["result"].keys() - clocks:
            assert row["result"][name] == pytest.approx(alone["result"][name]), name


@pytest.fixture
def record():
    """Records steps given as (Tc, Tm, KV tokens held, prefill tokens), on an engine that overlaps perfectly."""

    def of(*steps):
        recorder = StepRecorder()
        for tc_s, tm_s, held, prefill in steps:
            loads = dict.fromkeys(("num_decodes", "num_sampled", "kv_tokens_read", "prefill_pairs"), 0)
            seconds = {"seconds": max(tc_s, tm_s), "tc_s": tc_s, "tm_s": tm_s}
            recorder.append(num_prefill_tokens=prefill, kv_tokens_held=held, **loads, **seconds)
        return recorder

    return of


PERFECT = CostModel(llama_3_8b(), a100_80gb(), interference=0.0)
FULL_KV = PERFECT.kv_capacity_tokens


def test_steps_of_one_bottleneck_lose_nothing(record):
    losses = loss_split(record((3.0, 1.0, FULL_KV, 10), (5.0, 5.0, FULL_KV, 10)), PERFECT, 8.0, 0)
    assert losses == dict.fromkeys(losses, 0.0)


def test_a_step_bound_by_the_other_resource_is_lost_where_it_happens(record):
    # Compute bounds the run: 20 s of it. Steps in which memory took longer lose the difference.
    steps = [(1.0, 2.0, 0, 10), (12.0, 1.0, FULL_KV, 10), (4.0, 7.0, FULL_KV, 10), (3.0, 9.0, 100, 0)]
    losses = loss_split(record(*steps), PERFECT, 18.5, 0)
    assert (losses["ramp"], losses["wrong_bottleneck"], losses["tail"]) == (1.0, 3.0, 6.0)
    assert losses["step_constants"] == 1.5


def test_recomputed_tokens_are_not_counted_as_constants(record):
    losses = loss_split(record((10.0, 1.0, FULL_KV, 10)), PERFECT, 9.0, 1000)
    assert losses["recomputation"] == 1000 * PERFECT.gemm_token_s
    assert losses["step_constants"] + losses["recomputation"] == pytest.approx(1.0)


def test_a_stopped_evaluation_goes_on_where_it_was(case, tmp_path):
    first, again = (run_all([case], tmp_path / "results.jsonl", 1) for _ in range(2))
    assert first[0]["result"]["simulation_s"] == again[0]["result"]["simulation_s"]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 1


def test_half_a_line_and_results_of_other_code_are_run_again(case, tmp_path):
    path = tmp_path / "results.jsonl"
    (row,) = run_all([case], path, 1)
    other = json.dumps(row | {"code": "of before"}) + "\n"
    path.write_text(other + other[:50])
    assert len(run_all([case], path, 1)) == 1
    assert [json.loads(line)["code"] == "of before" for line in path.read_text().splitlines()] == [True, False]


def test_no_case_begins_past_the_deadline(case, tmp_path):
    assert run_all([case], tmp_path / "results.jsonl", 1, deadline=0.0) == []


def test_the_chunk_size_with_the_highest_throughput_is_taken(case):
    speeds = {512: 10.0, 2048: 30.0, 8192: 20.0}
    rows = [
        {"case": asdict(replace(case, label=trace, max_step_tokens=size)), "result": {"tokens_per_s": speed}}
        for trace, fastest in (("#1", 0), ("#3", 512))
        for size, speed in (speeds | ({fastest: 90.0} if fastest else {})).items()
    ]
    best = best_chunks(rows)
    searched = replace(case, max_step_tokens=SEARCHED)
    assert with_best_chunk(searched, best).max_step_tokens == 512
    assert with_best_chunk(replace(searched, label="llama-3-70b"), best).max_step_tokens == 2048
    assert with_best_chunk(replace(searched, max_step_tokens=64), best).max_step_tokens == 64


def test_no_case_is_run_twice_and_the_must_reach_table_is_first():
    cases = all_cases(Sizes())
    assert len(set(cases)) == len(cases)
    first = cases[:16]
    assert {case.group for case in first} == {"main"}
    assert {case.label for case in first} == {"#1", "#2", "#3", "#4"}


def test_the_grid_has_the_papers_65_mixes():
    assert len({(case.density, case.sharing) for case in grid_cases(Sizes())}) == 65


def test_every_kind_of_case_has_a_chunk_size():
    best = {(case.label, case.engine, case.policy): 512 for case in chunk_cases(Sizes())}
    assert all(with_best_chunk(case, best).max_step_tokens > 0 for case in all_cases(Sizes()))


def test_a_report_says_what_is_missing_and_misses_nothing_else(case, tmp_path):
    """Two of the cases of the main table were run; every section stands, with what it has."""
    rows = [run_case(replace(case, label="#1", policy=policy)) for policy in ("blend", "depth-first")]
    report = write_report(rows, 7, tmp_path).read_text()
    assert "7 cases were not run" in report
    assert "not run" in report
    assert re.search(r"share of the reachable time \| \d+\.\d% \((meets|\*\*misses\*\*) 95\.0%\) \| not run", report)
    assert {path.name for path in tmp_path.glob("*.svg")} == {"throughput.svg", "resources.svg"}


def test_plots_are_whole_svg_files():
    plots = [
        bars("speed", ["#1"], {"a": [1.0], "b & c": [2.0]}, "tokens/s"),
        uses("use", {"x": {"compute": [0.1, 0.9]}}),
        heat_map("gain", ["r"], ["c"], {("r", "c"): 0.2}),
    ]
    assert all(plot.startswith("<svg") and plot.endswith("</svg>\n") for plot in plots)
    assert "b &amp; c" in plots[0]


def test_a_case_that_cannot_be_is_said_and_left_out(case, tmp_path, capsys):
    impossible = replace(case, density=1e6)
    rows = run_all([impossible, case], tmp_path / "results.jsonl", num_processes=1)
    assert [row["case"] for row in rows] == [asdict(case)]
    assert "no mix" in capsys.readouterr().err


@pytest.mark.parametrize("sizes", [Sizes(), Sizes().scaled(0.05), FULL])
def test_every_model_has_its_mix(sizes):
    for case in model_cases(replace(sizes, models=min(sizes.models, 5_000))):
        if case.policy == "blend":
            assert workload_of(case).requests.num_requests == case.num_requests
