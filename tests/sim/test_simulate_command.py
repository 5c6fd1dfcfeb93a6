import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.hardware import a100_80gb
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.sim.steps import total_seconds
from flows.cli import call

KEYS = {
    "seconds", "tokens_per_s", "total_tokens", "t_practical_optimum_s", "t_reachable_s", "fraction_of_practical_optimum",
    "fraction_of_reachable", "sharing_ratio", "max_sharing_ratio", "num_retractions", "num_recomputed_tokens", "num_steps",
    "schedule_ms_mean", "schedule_ms_p99", "tc_s", "tm_s",
}  # fmt: skip


@pytest.fixture
def requests(tmp_path):
    lengths = {"input_tokens": [120, 130, 90, 60] * 10, "output_tokens": [3, 5, 40, 2] * 10}
    prefix = {"prefix_group": ["a", "a", None, "b"] * 10, "shared_prefix_tokens": [64, 64, 0, 32] * 10}
    pq.write_table(pa.table({**lengths, **prefix}), tmp_path / "lengths.parquet")
    return tmp_path / "lengths.parquet"


def test_a_simulation_is_printed_as_json_with_its_steps_on_disk(requests, tmp_path, capsys):
    steps = tmp_path / "steps.parquet"
    options = "--policy depth-first --engine sequential --model llama-3-8b --hardware a100-80gb --lengths true --seed 1 --json"
    status = call(["simulate", "--requests", str(requests), *options.split(), "--steps-out", str(steps)])
    result = json.loads(capsys.readouterr().out)
    assert status == 0
    assert result.keys() >= KEYS
    assert result["total_tokens"] == 10 * (120 + 130 + 90 + 60 + 3 + 5 + 40 + 2)
    assert result["sharing_ratio"] == pytest.approx(result["max_sharing_ratio"])
    assert sum(pq.read_table(steps)["seconds"].to_pylist()) == pytest.approx(result["seconds"])


@pytest.mark.parametrize("engine", ["sequential", "overlapped"])
def test_the_steps_on_disk_and_the_cost_model_give_the_time(requests, tmp_path, capsys, engine):
    steps_out = tmp_path / "steps.parquet"
    options = f"--policy blend --engine {engine} --interference 0.35 --shards 2 --json --cascade --steps-out {steps_out}"
    assert call(["simulate", "--requests", str(requests), "--num-requests", "300", *options.split()]) == 0
    result = json.loads(capsys.readouterr().out)
    steps = {name: column.to_numpy() for name, column in zip(*columns_of(steps_out), strict=True)}
    cost = CostModel(llama_3_8b(), a100_80gb(), engine, 0.35)
    num_tokens = steps["num_prefill_tokens"] + steps["num_decodes"]
    compute_s = cost.step_compute_s(num_tokens, steps["num_sampled"], steps["prefill_pairs"])
    seconds = cost.combine(compute_s, cost.step_memory_s(steps["kv_tokens_read"]))
    assert set(steps["shard"]) == {0, 1}
    assert set(steps["is_warm_up"]) == {0, 1}
    assert total_seconds(steps["shard"], steps["is_warm_up"], seconds) == pytest.approx(result["seconds"])
    assert (steps["tc_s"].sum(), steps["tm_s"].sum()) == pytest.approx((result["tc_s"], result["tm_s"]))
    assert len(seconds) == result["num_steps"]


def columns_of(path):
    table = pq.read_table(path)
    return table.column_names, table.columns


def test_a_simulation_is_told_in_words_without_json(requests, capsys):
    assert call(["simulate", "--requests", str(requests), "--num-requests", "10", "--policy", "random"]) == 0
    assert capsys.readouterr().out.startswith("10 requests")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either --trace"),
        (["--requests", "nowhere.parquet"], "not a file"),
        (["--trace", "1", "--num-requests", "0"], "at least 1"),
        (["--trace", "1", "--model", "no-such"], "llama-3-8b"),
        (["--trace", "1", "--hardware", "abacus"], "a100-80gb"),
        (["--trace", "1", "--interference", "2"], "from 0"),
        (["--trace", "1", "--steps-out", "no/such/steps.parquet"], "make no/such first"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, capsys):
    assert call(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err
