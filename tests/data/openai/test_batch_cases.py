"""The JSON Lines files of tests/cases/jsonl as batches, each with what index.json says is right."""

import json

import pyarrow.parquet as pq
import pytest
from staging_helpers import CASES, answer_all, stage_file

from blendserve_core.data.openai.output import write_batch_files
from blendserve_core.data.openai.responses import Job
from blendserve_core.data.publish import publish
from blendserve_core.requests import RequestTable
from blendserve_core.text.stops import StopWatcher

JSONL = CASES / "jsonl"


@pytest.fixture
def run_case(tokenizer, tmp_path):
    """Stage a file, answer all that can be served, publish, and write both files; returns their lines by custom_id."""

    def run(path, **options):
        stage_file(path, tokenizer, tmp_path / "staged", **options)
        answer_all(tmp_path / "staged", tmp_path / "engine")
        publish(tmp_path / "staged", [tmp_path / "engine"], tmp_path / "generations.parquet")
        job = Job("m", 1_700_000_000, "fingerprint", lambda token_id: tokenizer.decode([token_id]))
        counts = write_batch_files(tmp_path / "generations.parquet", tmp_path / "out.jsonl", tmp_path / "errors.jsonl", job)
        served, failed = lines_of(tmp_path / "out.jsonl"), lines_of(tmp_path / "errors.jsonl")
        assert counts == (len(served), len(failed))
        return served, failed

    return run


def lines_of(path):
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["custom_id"]: line for line in lines}


def message_of(line):
    assert line["error"] is None
    assert 400 <= line["response"]["status_code"] < 500
    return line["response"]["body"]["error"]["message"]


def requests_of(tmp_path):
    return RequestTable.load(tmp_path / "staged")


@pytest.mark.parametrize("name", ["ok.jsonl", "bom.jsonl", "blank_lines.jsonl", "not_really_gz.jsonl.gz"])
def test_three_requests_give_three_responses_in_their_order(run_case, name):
    served, failed = run_case(JSONL / name)
    assert list(served) == ["c0", "c1", "c2"]
    assert not failed
    assert [line["response"]["body"]["choices"][0]["message"]["content"] for line in served.values()] == [
        "answer 0.0", "answer 1.0", "answer 2.0",
    ]  # fmt: skip


def test_an_empty_file_is_said_to_hold_no_requests(run_case):
    with pytest.raises(ValueError, match=r"empty\.jsonl: no requests"):
        run_case(JSONL / "empty.jsonl")


def test_a_cut_line_is_named(run_case):
    with pytest.raises(ValueError, match=r"bad_line\.jsonl, line 2: not JSON"):
        run_case(JSONL / "bad_line.jsonl")


def test_a_custom_id_that_occurs_twice_is_refused_with_its_lines(run_case, tmp_path):
    with pytest.raises(ValueError, match=r"'same' in .*duplicate_custom_id\.jsonl, line 1; .*line 2"):
        run_case(JSONL / "duplicate_custom_id.jsonl")
    assert not (tmp_path / "staged" / "manifest.json").exists()


def test_separators_of_unicode_reach_the_model_and_part_no_line(run_case, tokenizer, tmp_path):
    served, _ = run_case(JSONL / "unicode_separators.jsonl")
    assert list(served) == ["c0", "c1"]
    prompt = tokenizer.decode(requests_of(tmp_path).prompt(0).tolist())
    assert "first\u2028second\u2029third\x85fourth" in prompt


def test_half_a_surrogate_pair_becomes_the_replacement_character(run_case, tokenizer, tmp_path):
    served, failed = run_case(JSONL / "surrogates.jsonl")
    assert (list(served), failed) == (["pair", "lone", "c2"], {})
    requests = requests_of(tmp_path)
    assert "😀 ok" in tokenizer.decode(requests.prompt(0).tolist())
    assert "half \ufffd here" in tokenizer.decode(requests.prompt(1).tolist())


def test_chat_and_completions_are_served_and_other_urls_are_errors_of_their_lines(run_case, tmp_path):
    served, failed = run_case(JSONL / "mixed_urls.jsonl")
    assert [line["response"]["body"]["object"] for line in served.values()] == ["chat.completion", "text_completion"]
    assert list(failed) == ["c2", "c3"]
    assert message_of(failed["c2"]).startswith("url is '/v1/embeddings'; served are")
    assert failed["c3"]["response"]["status_code"] == 404
    assert requests_of(tmp_path).num_prompt_tokens.tolist() == [len("user: Say 0.\nassistant:"), len("Once")]


def test_unknown_parameters_are_named_and_null_is_the_default(run_case, tmp_path):
    served, failed = run_case(JSONL / "unknown_params.jsonl", sampling={"max_tokens": 77})
    assert list(served) == ["c0", "c3"]
    assert message_of(failed["c1"]) == "unknown parameters: 'foo'; best_of 4 is not served"
    assert message_of(failed["c2"]) == "top_logprobs is 50; it must be from 0 to 20"
    assert set(requests_of(tmp_path).sampling.max_tokens.tolist()) == {77}


def test_formats_hold_for_their_own_request_and_a_bad_one_is_its_error(run_case, tmp_path):
    served, failed = run_case(JSONL / "json_schema.jsonl")
    assert list(served) == ["c0", "c1"]
    assert "objekt" in message_of(failed["c2"])
    tree, plain = requests_of(tmp_path).sampling.response_format.tolist()
    assert (tree >= 0, plain) == (True, -1)


def test_stop_strings_may_be_bare_overlap_and_begin_inside_a_token(run_case, tokenizer, tmp_path):
    served, _ = run_case(JSONL / "stop_boundary.jsonl")
    assert len(served) == 3
    sampling = requests_of(tmp_path).sampling
    stops = [sampling.stop_sets[stop_set] for stop_set in sampling.stop_set]
    assert stops == [("a bet",), ("\n\n", "\nB"), ("i",)]
    watcher = StopWatcher(tokenizer)
    texts = [
        watcher.final_text(tokenizer.encode_text(text), stop)
        for text, stop in zip(["alpha beta gamma", "A\nB\nC\n\n", "Hi."], stops, strict=True)
    ]
    assert texts == [("alph", True), ("A", True), ("H", True)]


def test_keys_of_a_line_beside_the_request_are_carried(run_case, tmp_path):
    lines = (JSONL / "ok.jsonl").read_text().splitlines()
    tagged = [line[:-1] + f', "tag": {number}}}' for number, line in enumerate(lines)]
    (tmp_path / "tagged.jsonl").write_text("\n".join(tagged))
    served, _ = run_case(tmp_path / "tagged.jsonl")
    assert len(served) == 3
    published = pq.read_table(tmp_path / "generations.parquet")
    assert published.column("tag").to_pylist() == [0, 1, 2]
    assert json.loads(published.column("body").to_pylist()[0]) == json.loads(lines[0])["body"]
