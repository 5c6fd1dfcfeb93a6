import gzip
import json
import os

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from staging_helpers import CASES, parameters

from blendserve_core.data import batches as batches_module
from blendserve_core.data.jsonl import JsonlSource
from blendserve_core.data.source import open_source


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(rows), path)
    return path


def rows_of(source):
    return [row for batch in source.batches() for row in batch.to_pylist()]


def contents_of(rows):
    return [json.loads(row["body"])["messages"][0]["content"] for row in rows]


def open_rows(requests, **options):
    return rows_of(open_source(parameters(requests, **options)))


def test_a_folder_is_read_in_the_order_of_its_names_without_stray_files(tmp_path):
    write(tmp_path / "data" / "b.parquet", {"prompt": ["2"]})
    write(tmp_path / "data" / "a.parquet", {"prompt": ["1"]})
    for stray in ("_SUCCESS", ".a.parquet.crc", "c.parquet.tmp", "_temporary/x.parquet", ".hidden/x.parquet", "README.md"):
        (tmp_path / "data" / stray).parent.mkdir(exist_ok=True)
        (tmp_path / "data" / stray).write_text("stray")
    assert open_rows(tmp_path / "data") == [{"prompt": "1"}, {"prompt": "2"}]


def test_a_glob_names_some_files_of_a_folder(tmp_path):
    for name in ("a1", "a2", "b1"):
        write(tmp_path / f"{name}.parquet", {"prompt": [name]})
    assert open_rows(tmp_path / "a*.parquet") == [{"prompt": "a1"}, {"prompt": "a2"}]


def test_a_file_named_outright_may_be_hidden_and_without_suffix(tmp_path):
    write(tmp_path / "_requests", {"prompt": ["x"]})
    assert open_rows(tmp_path / "_requests") == [{"prompt": "x"}]


def test_uris_are_read_through_fsspec():
    with fsspec.open("memory://bucket/lang=de/requests.parquet", "wb") as file:
        pq.write_table(pa.table({"prompt": ["Hallo"]}), file)
    for requests in ("memory://bucket", "memory://bucket/**/*.parquet"):
        assert open_rows(requests) == [{"prompt": "Hallo", "lang": "de"}]
    assert open_rows("memory://bucket/lang=de/requests.parquet") == [{"prompt": "Hallo"}]


def test_partition_values_are_text_unquoted_and_may_be_null(tmp_path):
    for folder in ("day=01", "day=__HIVE_DEFAULT_PARTITION__", "day=a%2Fb"):
        write(tmp_path / folder / "x.parquet", {"prompt": ["p"]})
    assert [row["day"] for row in open_rows(tmp_path)] == ["01", None, "a/b"]


def test_a_column_of_the_file_comes_before_a_partition_of_that_name(tmp_path):
    write(tmp_path / "day=01" / "x.parquet", {"prompt": ["p"], "day": [1]})
    assert open_rows(tmp_path) == [{"prompt": "p", "day": 1}]


def test_the_limit_cuts_across_files(tmp_path):
    for name in "abc":
        write(tmp_path / f"{name}.parquet", {"prompt": [name] * 2})
    assert [row["prompt"] for row in open_rows(tmp_path, limit=3)] == ["a", "a", "b"]
    assert len(open_rows(tmp_path, limit=99)) == 6


def test_batches_are_small_whatever_the_row_group(monkeypatch):
    source = open_source(parameters(CASES / "one_big_row_group.parquet"))
    assert max(batch.num_rows for batch in source.batches()) == 4096
    monkeypatch.setattr(batches_module, "MAX_BATCH_BYTES", 4096)
    assert max(batch.num_rows for batch in source.batches()) < 500


def test_the_digest_follows_the_content_and_not_the_time(tmp_path):
    path = write(tmp_path / "x.parquet", {"prompt": ["a"]})
    before = open_source(parameters(path)).digest
    os.utime(path, (1, 1))
    assert open_source(parameters(path)).digest == before
    write(path, {"prompt": ["b"]})
    assert open_source(parameters(path)).digest != before


@pytest.mark.parametrize(
    ("requests", "message"),
    [("absent.parquet", "no Parquet or JSON Lines file"), ("no/such/folder/at/all", "no Parquet"), ("*.parquet", "no Parquet")],
)
def test_what_is_not_there_is_named(tmp_path, requests, message):
    with pytest.raises(FileNotFoundError, match=message):
        open_source(parameters(tmp_path / requests))


def test_a_folder_of_both_kinds_is_refused(tmp_path):
    write(tmp_path / "a.parquet", {"prompt": ["a"]})
    (tmp_path / "b.jsonl").write_text('{"prompt": "b"}')
    with pytest.raises(ValueError, match="both Parquet and JSON Lines"):
        open_source(parameters(tmp_path))


def test_types_that_no_type_holds_are_refused_with_file_and_column(tmp_path):
    write(tmp_path / "a.parquet", {"prompt": ["a"], "score": [2**60]})
    write(tmp_path / "b.parquet", {"prompt": ["a"], "score": [0.5]})
    with pytest.raises(ValueError, match=r"'score' is double in .*b\.parquet, but int64 in .*a\.parquet"):
        open_source(parameters(tmp_path))


def test_a_file_damaged_in_its_middle_is_named(tmp_path):
    path = write(tmp_path / "x.parquet", {"prompt": [f"prompt {i}" for i in range(1000)]})
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.parquet: cannot be read"):
        open_rows(path)


def test_two_columns_of_one_name_are_refused(tmp_path):
    schema = pa.schema([("prompt", pa.string()), ("prompt", pa.string())])
    pq.write_table(pa.table([["a"], ["b"]], schema=schema), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="more than one column is called 'prompt'"):
        open_source(parameters(tmp_path / "x.parquet"))


@pytest.fixture
def saved_dataset(tmp_path):
    dataset = datasets.Dataset.from_dict({"prompt": [f"p{i}" for i in range(5)], "label": [0, 1, 0, 1, 0]})
    return datasets.DatasetDict({"train": dataset, "test": dataset.select([4, 2])}), tmp_path / "saved"


def test_a_saved_dataset_is_read_by_split(saved_dataset):
    dataset, folder = saved_dataset
    dataset.save_to_disk(str(folder))
    assert [row["prompt"] for row in open_rows(folder, dataset_split="test")] == ["p4", "p2"]
    assert len(open_rows(folder, dataset_split="train", limit=2)) == 2
    with pytest.raises(ValueError, match=r"several splits.*train, test"):
        open_source(parameters(folder))
    with pytest.raises(ValueError, match="no split 'dev'"):
        open_source(parameters(folder, dataset_split="dev"))


def test_a_saved_dataset_of_one_split_needs_no_name(saved_dataset):
    dataset, folder = saved_dataset
    dataset["test"].save_to_disk(str(folder))
    source = open_source(parameters(folder))
    assert [row["prompt"] for row in rows_of(source)] == ["p4", "p2"]
    assert source.schema.field("label").type == pa.int64()
    assert source.digest == open_source(parameters(folder)).digest


def test_a_local_folder_is_loaded_by_datasets_where_a_split_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(tmp_path / "hub" / "train-00000.parquet", {"prompt": ["a"]})
    write(tmp_path / "hub" / "test-00000.parquet", {"prompt": ["b"]})
    assert open_rows(tmp_path / "hub", dataset_split="test") == [{"prompt": "b"}]


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    """A folder as the hub holds them, read by the library's own Parquet builder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for split, num_rows in (("train", 1000), ("test", 2)):
        write(tmp_path / "hub" / f"{split}-00000.parquet", {"prompt": [f"{split} {row}" for row in range(num_rows)]})
    return tmp_path / "hub"


def test_a_dataset_is_streamed_without_a_copy(hub_folder):
    source = open_source(parameters(hub_folder, dataset_streaming=True, dataset_split="train"))
    assert [row["prompt"] for row in rows_of(source)] == [f"train {row}" for row in range(1000)]
    assert max(batch.num_rows for batch in source.batches()) <= 256
    assert not list((hub_folder.parent / "cache").rglob("*.arrow"))


def test_a_stream_is_cut_by_the_limit_and_has_a_digest_of_its_files(hub_folder):
    job = parameters(hub_folder, dataset_streaming=True, dataset_split="test", limit=1)
    assert rows_of(open_source(job)) == [{"prompt": "test 0"}]
    before = open_source(job).digest
    assert open_source(job).digest == before
    write(hub_folder / "test-00000.parquet", {"prompt": ["other", "rows"]})
    os.utime(hub_folder / "test-00000.parquet", (1, 1))
    assert open_source(job).digest != before


def test_a_stream_of_several_splits_needs_a_name(hub_folder):
    with pytest.raises(ValueError, match=r"several splits.*train, test"):
        open_source(parameters(hub_folder, dataset_streaming=True))


def test_a_stream_of_lines_takes_its_columns_from_the_first_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_text('{"prompt": "a", "k": 1}\n{"prompt": "b", "k": 2}\n')
    rows = open_rows(tmp_path / "hub", dataset_streaming=True)
    assert rows == [{"prompt": "a", "k": 1}, {"prompt": "b", "k": 2}]


def test_a_damaged_file_of_a_dataset_names_the_dataset(hub_folder):
    (hub_folder / "test-00000.parquet").write_bytes(b"PAR1 and no more")
    for streaming in (False, True):
        with pytest.raises((ValueError, OSError), match=r"hub: .*Hugging Face dataset"):
            open_rows(hub_folder, dataset_split="test", dataset_streaming=streaming)


@pytest.mark.parametrize("name", ["gsm8k", "openai/gsm8k", "mlfoundations/dclm-baseline-1.0"])
@pytest.mark.parametrize("streaming", [False, True])
def test_what_is_no_file_may_be_on_the_hub_which_cannot_be_reached(name, streaming, monkeypatch):
    """The library's own loading code, told to be offline."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match=rf"{name}: no Parquet or JSON Lines file here.*Hugging Face dataset: .*{name}"):
        open_source(parameters(name, dataset_revision="main", dataset_streaming=streaming))


def test_a_dataset_is_asked_for_by_all_that_names_it(monkeypatch):
    asked = []

    def load_dataset(*args, **options):
        asked.append((args, options))
        return datasets.Dataset.from_dict({"prompt": ["a"]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    options = {"dataset_config": "main", "dataset_split": "train", "dataset_revision": "v2"}
    assert open_rows("openai/gsm8k", **options) == [{"prompt": "a"}]
    assert asked == [(("openai/gsm8k", "main"), {"split": "train", "revision": "v2"})]


PLAIN = ["Say 0.", "Say 1.", "Say 2."]


@pytest.mark.parametrize("name", ["ok.jsonl", "bom.jsonl", "blank_lines.jsonl", "not_really_gz.jsonl.gz"])
def test_json_lines_with_marks_blanks_and_wrong_names_are_three_rows(name):
    rows = open_rows(CASES / "jsonl" / name)
    assert contents_of(rows) == PLAIN


def test_gzip_is_told_by_its_first_bytes(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(gzip.compress(b'{"prompt": "a"}\n{"prompt": "b"}'))
    assert open_rows(tmp_path / "x.jsonl") == [{"prompt": "a"}, {"prompt": "b"}]


def test_a_gzip_file_cut_short_is_named(tmp_path):
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "a"}\n' * 100)[:-12])
    with pytest.raises(ValueError, match=r"x\.jsonl\.gz.*cannot be read on"):
        open_rows(tmp_path / "x.jsonl.gz")


def test_an_empty_file_is_said_to_hold_no_requests():
    with pytest.raises(ValueError, match=r"empty\.jsonl: no requests in it"):
        open_rows(CASES / "jsonl" / "empty.jsonl")


def test_a_line_that_is_no_json_is_named():
    with pytest.raises(ValueError, match=r"bad_line\.jsonl, line 2: not JSON"):
        open_rows(CASES / "jsonl" / "bad_line.jsonl")


def test_a_key_may_come_late():
    values = [row["priority"] for row in open_rows(CASES / "jsonl" / "late_key.jsonl")]
    assert values[:150] == [None] * 150
    assert None not in values[150:]
    assert len(values) == 200


def test_separators_of_unicode_part_no_lines():
    rows = open_rows(CASES / "jsonl" / "unicode_separators.jsonl")
    assert len(rows) == 2
    assert contents_of(rows)[0] == "first\u2028second\u2029third\x85fourthfifth"


def test_half_a_surrogate_pair_becomes_the_replacement_character():
    contents = contents_of(open_rows(CASES / "jsonl" / "surrogates.jsonl"))
    assert contents == ["😀 ok", "half \ufffd here", "Say 2."]


def test_a_type_unlike_that_of_other_lines_is_named(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"prompt": "a", "k": 1}\n\n{"prompt": "b", "k": "two"}\n')
    with pytest.raises(ValueError, match=r"'k' is string in .*line 3, but int64 in .*line 1"):
        open_rows(tmp_path / "x.jsonl")


def test_whole_and_broken_numbers_share_a_column_where_they_fit(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"k": 1}\n{"k": 0.5}\n')
    assert open_rows(tmp_path / "x.jsonl") == [{"k": 1.0}, {"k": 0.5}]


@settings(max_examples=200, deadline=None)
@given(content=st.one_of(st.binary(max_size=60), st.lists(st.sampled_from(
    [b'{"prompt": "a"}', b'{"prompt": 1}', b'{"k": [1, {"x": null}]}', b"[]", b"\xff", b"", b"NaN", b'{"k": 1e999}', b"{}",
     b'{"k": 99999999999999999999}', b'{"k": {}}', b"\x1f\x8b\x08", b'{"\\ud800": "\\ud800"}', b"{" * 2000, b"[" * 3000]
), max_size=5).map(b"\n".join)))  # fmt: skip
def test_any_bytes_are_rows_or_an_error_that_names_the_place(content):
    fs = fsspec.filesystem("memory")
    fs.pipe("/fuzz/x.jsonl", content)
    source = open_source(parameters("memory://fuzz/x.jsonl"))
    assert isinstance(source, JsonlSource)
    rows, problem = None, ""
    try:
        rows = rows_of(source)
    except ValueError as error:
        problem = str(error)
    if rows is None:
        assert ", line " in problem or "column" in problem or "no requests" in problem
    elif not content.startswith(b"\x1f\x8b"):
        lines = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
        assert len(rows) == len(lines)
        assert all(isinstance(json.loads(line), dict) for line in lines)
