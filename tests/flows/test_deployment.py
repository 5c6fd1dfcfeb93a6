"""The deployment of prefect.yaml on a real server, taken up by a process worker and started through the API."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

BIN = Path(sys.executable).parent
PROJECT = Path(__file__).parents[2]


def prefect(*arguments: str, environment: dict[str, str]) -> None:
    command = [str(BIN / "prefect"), "--no-prompt", *arguments]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def call_api(environment: dict[str, str], path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(environment["PREFECT_API_URL"] + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_a_process_worker_runs_the_deployed_flow(
    requests_file: Path, tiny_model_folder: Path, tmp_path: Path, server_by_hand: dict[str, str]
) -> None:
    parameters = {
        "requests": str(requests_file),
        "output": str(tmp_path / "out"),
        "model": str(tiny_model_folder),
        "sampling": {"max_tokens": 4},
        "engine": {"kv_cache_tokens": 2048, "max_sequences": 4, "threads": 1},
    }
    prefect("work-pool", "create", "blendserve", "--type", "process", environment=server_by_hand)
    prefect("deploy", "--all", environment=server_by_hand)
    deployment = call_api(server_by_hand, "/deployments/name/batch-inference/local")
    body = {"parameters": {"parameters": parameters}, "state": {"type": "SCHEDULED"}}
    run = call_api(server_by_hand, f"/deployments/{deployment['id']}/create_flow_run", body)
    prefect("worker", "start", "--pool", "blendserve", "--run-once", environment=server_by_hand)
    state = call_api(server_by_hand, f"/flow_runs/{run['id']}")["state"]
    assert state["type"] == "COMPLETED", state
    assert pq.read_table(tmp_path / "out" / "generations.parquet").num_rows == 12
