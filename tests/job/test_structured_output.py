"""A whole job whose rows ask for structured output."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from blendserve_core.job.run import run_job
from schemas.parameters import EngineOptions, JobParameters, SamplingDefaults

SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "grade": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["yes", "grade"],
}


def test_values_are_published_in_the_type_of_their_schema_beside_errors_and_cut_texts(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    rows = pa.table(
        {
            "prompt": ["one", "two", "cut", "bad", "free"],
            "max_tokens": [200, 200, 3, 200, 3],
            "response_format": [None, None, None, '{"type": "regex", "regex": "["}', '{"type": "text"}'],
        }
    )
    pq.write_table(rows, tmp_path / "requests.parquet")
    response_format = json.dumps({"type": "json_schema", "json_schema": {"schema": SCHEMA}})
    manifest = run_job(
        JobParameters(
            requests=str(tmp_path / "requests.parquet"),
            output=str(tmp_path / "out"),
            model=str(tiny_model_folder),
            dtype="float32",
            sample_fraction=0.0,
            max_error_rate=0.5,
            sampling=SamplingDefaults(response_format=response_format, temperature=1.0),
            engine=EngineOptions(kv_cache_tokens=2048, max_sequences=8, threads=1),
        )
    )
    published = pq.read_table(manifest.generations)
    assert published.schema.field("parsed").type == pa.struct([("yes", pa.bool_()), ("grade", pa.int64())])
    outcomes = published.to_pylist()
    assert [outcome["finish_reason"] for outcome in outcomes] == ["stop", "stop", "length", "error", "length"]
    assert [outcome["parsed"] for outcome in outcomes[:2]] == [json.loads(outcome["output_text"]) for outcome in outcomes[:2]]
    assert [outcome["parsed"] for outcome in outcomes[2:]] == [None, None, None]
    assert outcomes[3]["error"]["type"] == "invalid_response_format"
