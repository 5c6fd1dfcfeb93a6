"""The command line as scripts use it. Each run is a process of its own, so there are few of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import wait_until

from flows.commands.ctrl_c import STOPPED, TERMINATED
from schemas.manifest import Progress

BIN = Path(sys.executable).parent
NUM_LONG = 160
ENGINE = ["--kv-cache-tokens", "2048", "--max-sequences", "4", "--threads", "1"]


def blendserve(*arguments: str | Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "blendserve"), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_run_prints_the_manifest_last_and_works_on_a_server_started_by_hand(
    requests_file: Path, tiny_model_folder: Path, tmp_path: Path, server_by_hand: dict[str, str]
) -> None:
    options = ["--limit", "8", "--max-tokens", "5", "--policy", "depth-first", "--dtype", "float32", *ENGINE]
    output = ["--output", tmp_path / "out", "--model", tiny_model_folder, "--json"]
    done = blendserve("run", requests_file, *output, *options, environment=server_by_hand)
    manifest = json.loads(done.stdout)
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["num_rows"], manifest["num_errors"], manifest["policy"]) == (8, 0, "depth-first")
    assert "temporary server" not in done.stderr
    assert pq.read_table(manifest["generations"]).num_rows == 8


def test_run_starts_a_server_of_its_own_where_none_is_named(
    requests_file: Path, tiny_model_folder: Path, tmp_path: Path, prefect_environment: dict[str, str]
) -> None:
    options = ["--output", tmp_path / "out", "--model", tiny_model_folder, "--max-tokens", "3", *ENGINE]
    done = blendserve("run", requests_file, *options, environment=prefect_environment)
    for expected in ("generations.parquet", "manifest.json", "report.md", "tokens/s", "row 0"):
        assert expected in done.stdout


def test_plan_prints_the_plan_and_generates_nothing(
    requests_file: Path, tiny_model_folder: Path, tmp_path: Path, prefect_environment: dict[str, str]
) -> None:
    options = ["--output", tmp_path / "out", "--model", tiny_model_folder, "--shards", "2", "--json"]
    plan = json.loads(blendserve("plan", requests_file, *options, environment=prefect_environment).stdout)
    assert plan["num_requests"] == 12
    assert sum(shard["num_requests"] for shard in plan["shards"]) == 12
    assert not (tmp_path / "out" / "generations.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "nowhere.parquet", "--output", "out"], "nowhere.parquet"),
        (["run", "{requests}", "--output", "out", "--model", "no-such-folder/no-such-model/x"], "no-such-model"),
        (["run", "{requests}", "--output", "out", "--max-tokens", "0"], "max_tokens"),
        (["run", "{requests}", "--output", "out", "--column", "prompt"], "--column"),
        (["run", "{requests}", "--output", "out", "--column", "prompt=body"], "body"),
        (["run", "{requests}"], "--output"),
    ],
)
def test_a_users_mistake_is_one_line_and_status_2(
    arguments: list[str], complaint: str, requests_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    from flows.cli import call

    monkeypatch.chdir(tmp_path)
    status = call([argument.format(requests=requests_file) for argument in arguments])
    captured = capsys.readouterr()
    assert status == 2
    assert complaint in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_help_does_not_import_prefect_or_torch() -> None:
    script = "import sys, flows.cli; flows.cli.call(['--help']); print(*{'prefect', 'torch', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


@pytest.fixture
def long_requests(tmp_path: Path) -> Path:
    """Enough work to be interrupted in."""
    path = tmp_path / "long.parquet"
    prompts = [f"Write {row} lines." for row in range(NUM_LONG)]
    pq.write_table(pa.table({"prompt": prompts, "max_tokens": [180] * NUM_LONG, "ignore_eos": [True] * NUM_LONG}), path)
    return path


def test_a_job_goes_on_after_being_stopped_and_after_being_killed(
    long_requests: Path, tiny_model_folder: Path, tmp_path: Path, server_by_hand: dict[str, str]
) -> None:
    output = tmp_path / "out"
    arguments = ["run", long_requests, "--output", output, "--model", tiny_model_folder, "--shards", "2", *ENGINE]
    _interrupt_while_generating(arguments, output, server_by_hand, signal.SIGTERM, num_rows=8)
    _interrupt_while_generating(arguments, output, server_by_hand, signal.SIGKILL, num_rows=40)
    manifest = json.loads(blendserve(*arguments, "--json", environment=server_by_hand).stdout)
    assert (manifest["num_rows"], manifest["num_errors"]) == (NUM_LONG, 0)
    assert set(Counter(_finished_rows(output)).values()) == {1}
    assert set(pq.read_table(manifest["generations"])["num_output_tokens"].to_pylist()) == {180}


def test_a_signal_to_the_server_of_a_run_too_ends_it_on_one_line(
    long_requests: Path, tiny_model_folder: Path, tmp_path: Path, prefect_environment: dict[str, str]
) -> None:
    """As ``timeout``, a terminal and a batch system send it."""
    output = tmp_path / "out"
    command = [BIN / "blendserve", "run", long_requests, "--output", output, "--model", tiny_model_folder, *ENGINE]
    process = subprocess.Popen(
        command, env=prefect_environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: process.poll() is not None or _num_told(output) >= 4, "4 rows are finished")
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == TERMINATED
    assert errors.splitlines()[-1] == STOPPED
    assert "Traceback" not in errors
    assert len(_finished_rows(output)) >= 4


def _interrupt_while_generating(
    arguments: list[str | Path], output: Path, environment: dict[str, str], how: signal.Signals, num_rows: int
) -> None:
    """Start a run, send the signal once its engines tell of ``num_rows`` rows, and wait until the engines are gone too."""
    command = [str(BIN / "blendserve"), *map(str, arguments)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: process.poll() is not None or _num_told(output) >= num_rows, f"{num_rows} rows are finished")
    assert process.poll() is None, "the run was over before it could be interrupted"
    engines = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, how)
    assert process.wait(timeout=60) != 0
    psutil.wait_procs(engines, timeout=60)
    assert not any(engine.is_running() for engine in engines)
    assert num_rows <= len(_finished_rows(output)) < NUM_LONG


def _num_told(output: Path) -> int:
    """Rows that the engines' heartbeats tell of."""
    return sum(Progress.read(path).num_finished for path in output.glob("work/*/shard-*/progress.json"))


def _finished_rows(output: Path) -> list[int]:
    return [row for part in output.glob("work/*/*/part-*.parquet") for row in pq.read_table(part)["row"].to_pylist()]
