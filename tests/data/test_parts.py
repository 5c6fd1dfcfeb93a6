import pyarrow.parquet as pq
import pytest
from staging_helpers import outcome, stage_rows

from blendserve_core.data import durable
from blendserve_core.data.parts import Generation, PartWriter, TokenLogprob, finished_keys, finished_requests
from schemas.arrow import GENERATION_SCHEMA


def generation(row, sample_index=0, **fields):
    return Generation(row, sample_index, f"text {row}", [1, 2], "stop", 3, 1, 2, **fields)


def names(folder):
    return sorted(path.name for path in folder.glob("*.parquet"))


def test_a_part_is_written_when_enough_rows_wait(tmp_path):
    with PartWriter(tmp_path, max_rows=2, max_delay_s=1e9) as parts:
        parts.append(generation(5))
        assert names(tmp_path) == []
        parts.append(generation(3))
        assert names(tmp_path) == ["part-000000.parquet"]
        parts.append(generation(4))
    assert names(tmp_path) == ["part-000000.parquet", "part-000001.parquet"]
    assert finished_keys([tmp_path])[0].tolist() == [5, 3, 4]


def test_a_part_is_written_when_a_row_has_waited_long_enough(tmp_path):
    parts = PartWriter(tmp_path, max_rows=100, max_delay_s=0.0)
    parts.append(generation(1))
    assert names(tmp_path) == ["part-000000.parquet"]


def test_a_restarted_writer_goes_on_numbering(tmp_path):
    for row in (1, 2):
        with PartWriter(tmp_path) as parts:
            parts.append(generation(row))
    assert names(tmp_path) == ["part-000000.parquet", "part-000001.parquet"]


def test_a_part_has_the_declared_schema_and_holds_every_field(tmp_path):
    logprobs = [TokenLogprob(1, -0.5, [1, 4], [-0.5, -1.5]), TokenLogprob(2, -0.25, [2, 1], [-0.25, -2.0])]
    error = {"type": "invalid_prompt", "message": "no", "stage": "generate"}
    with PartWriter(tmp_path) as parts:
        parts.extend([generation(0, logprobs=logprobs), Generation(1, 2, None, None, "error", error=error)])
    table = pq.read_table(tmp_path / "part-000000.parquet")
    assert table.schema.equals(GENERATION_SCHEMA)
    good, bad = table.to_pylist()
    assert good["logprobs"][1] == {"token_id": 2, "logprob": -0.25, "top_token_ids": [2, 1], "top_logprobs": [-0.25, -2.0]}
    assert (bad["row"], bad["sample_index"], bad["output_text"], bad["error"]) == (1, 2, None, error)


def test_rows_of_a_failed_write_are_kept_for_the_next(tmp_path, monkeypatch):
    parts = PartWriter(tmp_path, max_rows=100, max_delay_s=1e9)
    parts.append(generation(7))

    def full(*_):
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "put_in_place", full)
        with pytest.raises(OSError, match="No space"):
            parts.flush()
    assert finished_keys([tmp_path])[0].tolist() == []
    parts.close()
    assert finished_keys([tmp_path])[0].tolist() == [7]


def test_half_written_files_are_passed_over(tmp_path):
    with PartWriter(tmp_path) as parts:
        parts.append(generation(1))
    (tmp_path / ".part-000001.parquet.tmp").write_bytes(b"PAR1 half")
    assert finished_keys([tmp_path, tmp_path / "absent"])[0].tolist() == [1]


def test_a_damaged_part_is_named(tmp_path):
    (tmp_path / "part-000000.parquet").write_bytes(b"PAR1 not whole")
    with pytest.raises(ValueError, match=r"part-000000\.parquet.*Remove it"):
        finished_keys([tmp_path])


def test_finished_requests_are_found_by_row_and_sample(tokenizer, tmp_path):
    rows = {"prompt": ["a", "", "b", "c"], "n": [2, 1, 3, 1]}
    _, requests, _ = stage_rows(rows, tokenizer, tmp_path, sampling={"temperature": 1.0})
    with PartWriter(tmp_path / "one") as parts:
        parts.append(outcome(requests, 3))
    with PartWriter(tmp_path / "two") as parts:
        parts.extend([outcome(requests, 0), outcome(requests, 5), generation(99)])
    is_finished = finished_requests(requests, [tmp_path / "one", tmp_path / "two"])
    assert is_finished.tolist() == [True, False, False, True, False, True]


def test_nothing_is_finished_without_part_files(tokenizer, tmp_path):
    _, requests, _ = stage_rows({"prompt": ["a", "b"]}, tokenizer, tmp_path)
    assert finished_requests(requests, []).tolist() == [False, False]
