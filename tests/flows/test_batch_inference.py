"""The main flow in this process: its states, its artifacts, and what passes between its tasks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.manifest import Manifest
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def parameters(requests_file: Path, tiny_model_folder: Path, tmp_path: Path) -> JobParameters:
    return JobParameters(
        requests=str(requests_file),
        output=str(tmp_path / "out"),
        model=str(tiny_model_folder),
        sampling=SamplingDefaults(max_tokens=4),
        engine=EngineOptions(kv_cache_tokens=2048, max_sequences=8, threads=1),
    )


def with_bad_rows(parameters: JobParameters, num_bad: int) -> JobParameters:
    prompts = [*["fine"] * (10 - num_bad), *[None] * num_bad]
    pq.write_table(pa.table({"prompt": pa.array(prompts, pa.string())}), parameters.requests)
    return parameters.model_copy(update={"max_error_rate": 0.2})


def test_a_flow_completes_and_leaves_its_report_as_an_artifact(parameters: JobParameters) -> None:
    from prefect.artifacts import Artifact

    from flows.batch_inference import batch_inference

    state = batch_inference(parameters, return_state=True)
    manifest = state.result()
    assert (state.type.value, state.name) == ("COMPLETED", "Completed")
    assert isinstance(manifest, Manifest)
    assert manifest.num_rows == 12
    report = Artifact.get("blendserve-report")
    assert report is not None
    assert report.data == Path(manifest.report).read_text(encoding="utf-8")


def test_a_flow_with_some_bad_rows_completes_with_errors(parameters: JobParameters) -> None:
    from flows.batch_inference import batch_inference

    state = batch_inference(with_bad_rows(parameters, num_bad=2), return_state=True)
    assert (state.type.value, state.name) == ("COMPLETED", "CompletedWithErrors")
    assert state.result().num_errors == 2


def test_a_flow_with_too_many_bad_rows_fails_and_publishes_all_the_same(parameters: JobParameters) -> None:
    from flows.batch_inference import batch_inference

    state = batch_inference(with_bad_rows(parameters, num_bad=3), return_state=True)
    assert state.type.value == "FAILED"
    assert "3 of 10 rows" in str(state.message)
    assert pq.read_table(Path(parameters.output) / "generations.parquet").num_rows == 10


def test_runs_have_names_a_person_can_read(parameters: JobParameters) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import TaskRunFilter

    from flows.plan_only import plan_only

    state = plan_only(parameters, return_state=True)
    assert state.result()["num_requests"] == 12
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(state.state_details.flow_run_id)
        runs = client.read_task_runs(task_run_filter=TaskRunFilter(flow_run_id={"any_": [flow_run.id]}))
    assert flow_run.name == "plan requests.parquet with tiny-llama"
    assert {"stage requests", "preview the plan, policy blend"} <= {run.name for run in runs}


def test_the_form_of_the_flow_shows_every_parameter_with_its_bounds() -> None:
    from prefect.utilities.callables import parameter_schema

    from flows.batch_inference import batch_inference

    schema = parameter_schema(batch_inference).model_dump()
    fields = schema["definitions"]["JobParameters"]["properties"]
    assert set(fields) == set(JobParameters.model_fields)
    assert fields["requests"]["title"] == "Requests"
    assert fields["policy"]["enum"] == ["first-come", "depth-first", "random", "blend-paper", "blend"]
    assert fields["shards"]["minimum"] == 1
