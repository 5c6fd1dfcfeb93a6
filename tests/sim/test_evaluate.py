import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from evaluate_cases import Case, Sizes, all_cases, grid_cases
from evaluate_plots import bars, heat_map, uses
from evaluate_run import run_all, run_case


@pytest.fixture(scope="module")
def case():
    return Case("main", "#3", 1.4, 0.05, 2_000, "depth-first", mean_output=1024, keep_steps=True)


def test_losses_add_up_to_the_distance_from_the_reachable_time(case):
    row = run_case(case)
    assert sum(row["loss"].values()) == pytest.approx(row["result"]["seconds"] - row["result"]["t_reachable_s"])
    assert min(row["loss"][part] for part in ("ramp", "wrong_bottleneck", "tail")) > -1e-9


def test_a_stopped_evaluation_goes_on_where_it_was(case, tmp_path):
    first, again = (run_all([case], tmp_path / "results.jsonl", 1) for _ in range(2))
    assert first[0]["result"]["simulation_s"] == again[0]["result"]["simulation_s"]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 1


def test_no_case_is_run_twice():
    cases = all_cases(Sizes())
    assert len(set(cases)) == len(cases)


def test_the_grid_has_the_papers_65_mixes():
    assert len({(case.density, case.sharing) for case in grid_cases(Sizes())}) == 65


def test_plots_are_whole_svg_files():
    plots = [
        bars("speed", ["#1"], {"a": [1.0], "b & c": [2.0]}, "tokens/s"),
        uses("use", {"x": {"compute": [0.1, 0.9]}}),
        heat_map("gain", ["r"], ["c"], {("r", "c"): 0.2}),
    ]
    assert all(plot.startswith("<svg") and plot.endswith("</svg>\n") for plot in plots)
    assert "b &amp; c" in plots[0]
