"""What a staged job takes over from the output of an earlier run."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from staging_helpers import outcome, parameters

from blendserve_core.data.parts import Generation, PartWriter, TokenLogprob
from blendserve_core.data.publish import digests_path, publish, published_parts, run_of
from blendserve_core.data.reuse import EarlierOutput
from blendserve_core.data.row_digests import PublishedDigests
from blendserve_core.data.source import open_source
from blendserve_core.data.stage import stage
from blendserve_core.requests import RequestTable


class Folder:
    """Runs over growing data, one after the other. Each answers what it has to generate with its own name."""

    def __init__(self, path, tokenizer):
        self._path, self._tokenizer = path, tokenizer
        self.output = path / "out.parquet"
        self.earlier = None

    def stage(self, name, rows, **options):
        folder = self._path / name
        folder.mkdir()
        pq.write_table(rows if isinstance(rows, pa.Table) else pa.table(rows), folder / "requests.parquet")
        job = parameters(folder / "requests.parquet", **options)
        return stage(job, open_source(job), self._tokenizer, 100, folder / "staged", self.earlier)

    def run(self, name, rows, *, failing=(), **options):
        self.stage(name, rows, **options)
        staged, engine = self._path / name / "staged", self._path / name / "engine"
        requests = RequestTable.load(staged)
        with PartWriter(engine) as parts:
            for request in range(requests.num_requests):
                parts.append(answer(name, requests, request, failed=int(requests.row[request]) in failing))
        counts = publish(staged, [engine], self.output, run=name, max_file_rows=5)
        self.keep_as_earlier()
        return counts

    def keep_as_earlier(self, *, keeps_errors=True):
        digest = PublishedDigests.read(digests_path(self.output)).digest
        self.earlier = EarlierOutput(published_parts(self.output), digest, keeps_errors)

    def texts(self):
        return pq.read_table(self.output)["output_text"].to_pylist()


def answer(name, requests, request, *, failed):
    plain = outcome(requests, request)
    if failed:
        error = {"type": "capacity", "message": "no room", "stage": "generate"}
        return Generation(plain.row, plain.sample_index, None, None, "error", 1, 0, 0, error=error)
    logprobs = [TokenLogprob(5, -0.5, [5], [-0.5])] if requests.sampling.logprobs[request] >= 0 else None
    return Generation(plain.row, plain.sample_index, name, [1, 2], "stop", 3, 1, 2, logprobs=logprobs)


@pytest.fixture
def folder(tokenizer, tmp_path):
    return Folder(tmp_path, tokenizer)


def test_only_new_and_changed_rows_are_generated_and_the_union_is_in_input_order(folder):
    folder.run("one", {"prompt": ["a", "b", "c"], "note": ["x", "y", "z"]})
    counts = folder.run("two", {"prompt": ["new", "c", "changed", "a"], "note": ["n", "other", "m", "x"]})
    assert folder.texts() == ["two", "one", "two", "one"]
    assert pq.read_table(folder.output)["note"].to_pylist() == ["n", "other", "m", "x"]
    assert (counts.num_rows, counts.num_reused_rows, counts.num_served_output_tokens) == (4, 2, 4)


def test_an_output_of_many_files_is_taken_over_as_one(folder):
    prompts = [f"p{i}" for i in range(23)]
    folder.run("one", {"prompt": prompts})
    assert len(published_parts(folder.output)) == 5
    counts = folder.run("two", {"prompt": [*prompts[::-1], "new"]})
    assert folder.texts() == ["one"] * 23 + ["two"]
    assert counts.num_reused_rows == 23


def test_duplicates_of_a_row_that_is_known_cost_nothing(folder):
    folder.run("one", {"prompt": ["a", "a"]})
    counts = folder.run("two", {"prompt": ["a", "b", "a", "a", "b"]})
    assert folder.texts() == ["one", "two", "one", "one", "two"]
    assert (counts.num_reused_rows, counts.num_duplicate_rows) == (1, 3)


@pytest.mark.parametrize("options", [{"max_tokens": 9}, {"stop": ["x"]}, {"logprobs": 1}, {"temperature": 1.0}])
def test_other_parameters_are_generated_anew(folder, options):
    folder.run("one", {"prompt": ["a", "b"]})
    folder.run("two", {"prompt": ["a", "b"]}, sampling=options)
    assert folder.texts() == ["two", "two"]


def test_a_sampled_row_keeps_its_text_wherever_it_has_moved(folder):
    sampling = {"temperature": 1.0}
    folder.run("one", {"prompt": ["a", "b", "b"]}, sampling=sampling)
    counts = folder.run("two", {"prompt": ["b", "a", "b", "b"]}, sampling=sampling)
    assert folder.texts() == ["one", "one", "one", "two"]
    assert counts.num_reused_rows == 3


@pytest.mark.parametrize(("seed", "texts"), [(0, ["one", "one"]), (1, ["two", "two"])])
def test_another_seed_draws_anew(folder, seed, texts):
    folder.run("one", {"prompt": ["a", "a"]}, sampling={"temperature": 1.0})
    folder.run("two", {"prompt": ["a", "a"]}, sampling={"temperature": 1.0, "seed": seed})
    assert folder.texts() == texts


def test_samples_are_taken_over_one_by_one(folder):
    folder.run("one", {"prompt": ["a"], "n": [2]}, sampling={"temperature": 1.0})
    folder.run("two", {"prompt": ["a"], "n": [3]}, sampling={"temperature": 1.0})
    assert folder.texts() == ["one", "one", "two"]


def test_errors_are_kept_unless_they_are_to_be_retried(folder):
    rows = {"prompt": ["a", "b", "", "c"]}
    folder.run("one", rows, failing=[1])
    folder.run("two", rows)
    assert folder.texts() == ["one", None, None, "one"]
    folder.keep_as_earlier(keeps_errors=False)
    counts = folder.run("three", rows)
    assert folder.texts() == ["one", "three", None, "one"]
    assert (counts.num_reused_rows, counts.errors) == (2, {"invalid_prompt": 1})


def test_a_row_whose_only_twin_failed_is_kept_apart_from_it(folder):
    """Among equal outcomes of luck, those that failed do not count."""
    sampling = {"temperature": 1.0}
    folder.run("one", {"prompt": ["a", "a", "a"]}, failing=[0], sampling=sampling)
    folder.keep_as_earlier(keeps_errors=False)
    folder.run("two", {"prompt": ["a", "a", "a"]}, sampling=sampling)
    assert sorted(folder.texts()) == ["one", "one", "two"]


def test_logprobs_come_along_under_either_name(folder):
    folder.run("one", {"prompt": ["a", "b"], "logprobs": [1, None]})
    folder.run("two", {"prompt": ["a"]}, sampling={"logprobs": 1})
    assert folder.texts() == ["one"]
    assert pq.read_table(folder.output)["logprobs"].to_pylist()[0][0]["token_id"] == 5


def test_a_run_that_has_nothing_to_generate_is_staged_without_requests(folder):
    folder.run("one", {"prompt": ["a", "b"]})
    manifest = folder.stage("two", {"prompt": ["b"]})
    assert (manifest.num_requests, manifest.num_sequences, manifest.num_reused) == (1, 0, 1)


def test_output_and_digests_say_which_run_wrote_them(folder):
    folder.run("one", {"prompt": ["a", "", "a"]})
    published = PublishedDigests.read(digests_path(folder.output))
    assert run_of(folder.output) == published.run == "one"
    assert np.array_equal(published.digest[0], published.digest[2])
    assert published.digest[1].tolist() == [0, 0]
