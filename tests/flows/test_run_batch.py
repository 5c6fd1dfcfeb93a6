"""``run-batch`` as a script calls it, but for Prefect: the job runs in this process, its engine in one of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blendserve_core.job.run import run_job
from flows.cli import call

CASES = Path(__file__).parents[1] / "cases" / "jsonl"
ENGINE = ["--kv-cache-tokens", "2048", "--max-sequences", "4", "--threads", "1", "--sample-fraction", "0"]


@pytest.fixture(autouse=True)
def without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.commands.run_batch.run_job_in_prefect", lambda job: run_job(job.parameters))


def run_batch(requests: Path, output: Path, model: Path, *options: str) -> int:
    return call(["run-batch", "-i", str(requests), "-o", str(output), "--model", str(model), *ENGINE, *options])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def texts_of(path: Path) -> list[Any]:
    return [line["response"]["body"]["choices"] for line in lines_of(path)]


def write_requests(path: Path, *bodies: dict[str, Any]) -> Path:
    lines = [{"custom_id": f"c{number}", "method": "POST", "body": body} for number, body in enumerate(bodies)]
    path.write_text("\n".join(json.dumps(line | {"url": _url(line["body"])}) for line in lines), encoding="utf-8")
    return path


def _url(body: dict[str, Any]) -> str:
    return "/v1/completions" if "prompt" in body else "/v1/chat/completions"


def test_requests_are_answered_as_that_api_answers_them(tiny_model_folder: Path, tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 3, "seed": 5}
    requests = write_requests(
        tmp_path / "in.jsonl",
        chat | {"n": 2, "logprobs": True, "top_logprobs": 2},
        {"prompt": "Once", "max_tokens": 4, "logprobs": 1},
        chat | {"model": "m"},
    )
    assert run_batch(requests, tmp_path / "out.jsonl", tiny_model_folder) == 0
    assert not (tmp_path / "out.errors.jsonl").exists()
    lines = lines_of(tmp_path / "out.jsonl")
    assert [list(line) for line in lines] == [["id", "custom_id", "response", "error"]] * 3
    assert [(line["custom_id"], line["error"], line["response"]["status_code"]) for line in lines] == [
        ("c0", None, 200), ("c1", None, 200), ("c2", None, 200),
    ]  # fmt: skip
    two, text, one = (line["response"]["body"] for line in lines)
    assert (two["object"], two["model"]) == ("chat.completion", str(tiny_model_folder))
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["choices"][0]["message"]["role"] == "assistant"
    assert [len(token["top_logprobs"]) for token in two["choices"][1]["logprobs"]["content"]] == [2] * 3
    assert two["usage"]["completion_tokens"] == 6
    assert one["choices"][0]["logprobs"] is None
    assert one["choices"][0]["message"] == two["choices"][0]["message"]
    assert one["choices"][0]["finish_reason"] == "length"
    assert (text["object"], len(text["choices"][0]["logprobs"]["tokens"])) == ("text_completion", 4)
    for body in (two, text, one):
        usage = body["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_requests_that_failed_are_in_the_error_file_and_too_many_fail_the_job(
    tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_batch(CASES / "mixed_urls.jsonl", tmp_path / "out.jsonl", tiny_model_folder) == 1
    captured = capsys.readouterr()
    assert "2 of 4 rows are errors" in captured.err
    assert "2 responses" in captured.out
    assert [line["custom_id"] for line in lines_of(tmp_path / "out.jsonl")] == ["c0", "c1"]
    failed = lines_of(tmp_path / "out.errors.jsonl")
    assert [(line["custom_id"], line["response"]["status_code"]) for line in failed] == [("c2", 404), ("c3", 404)]
    before = texts_of(tmp_path / "out.jsonl")
    options = ["--max-error-rate", "1", "--error-file", str(tmp_path / "other.jsonl")]
    assert run_batch(CASES / "mixed_urls.jsonl", tmp_path / "out.jsonl", tiny_model_folder, *options) == 0
    assert texts_of(tmp_path / "out.jsonl") == before
    assert [line["custom_id"] for line in lines_of(tmp_path / "other.jsonl")] == ["c2", "c3"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("jsonl/empty.jsonl", "empty.jsonl: no requests in it"),
        ("jsonl/late_key.jsonl", "not in the batch format"),
        ("null_prompt.parquet", "not in the batch format"),
        ("jsonl/bad_line.jsonl", "line 2: not JSON"),
        ("jsonl/nowhere.jsonl", "nowhere.jsonl: no Parquet or JSON Lines file"),
    ],
)
def test_a_file_that_is_no_batch_is_one_line_and_status_2(
    name: str, complaint: str, tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_batch(CASES.parent / name, tmp_path / "out.jsonl", tiny_model_folder) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
