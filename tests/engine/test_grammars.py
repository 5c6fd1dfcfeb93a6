"""Random models that may write anything write what their rows' formats ask for, however they are batched or interrupted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from real_prompts import greedy_table
from serving import make_scheduler

from blendserve_core.engine.load import load_cpu_executor
from blendserve_core.engine.model.folder import resolve_model
from blendserve_core.requests import RequestTable, SamplingColumns
from blendserve_core.run import run_steps
from blendserve_core.schedule.scheduler import Finished, Scheduler
from blendserve_core.structured.compile import FormatCompiler
from blendserve_core.structured.formats import ResponseFormat
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.parameters import EngineOptions

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["good", "bad", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["name", "age", "mood", "tags"],
}
SCHEMAS = [
    PERSON,
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "object", "properties": {"when": {"type": "string", "format": "date"}}, "required": ["when"]},
    {"anyOf": [{"type": "integer", "minimum": 10, "maximum": 99}, {"const": "none"}]},
]
FORMATS = (
    *(ResponseFormat("json_schema", json.dumps(schema)) for schema in SCHEMAS),
    ResponseFormat("regex", "[0-9]{3}-(ab|c){1,3}"),
    ResponseFormat("grammar", 'root ::= "(" item ("," item){0,2} ")"\nitem ::= [x-z] | "(" item ")"'),
)
MAX_TOKENS = 160
EOS = (2,)
OPTIONS = EngineOptions(max_step_tokens=256, kv_cache_tokens=4096, threads=1)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model over the vocabulary of a real tokenizer."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model") / "random"
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("demo"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.4,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(model_folder: Path) -> PromptTokenizer:
    return PromptTokenizer.load(model_folder)


@pytest.fixture(scope="module", autouse=True)
def compile_once(model_folder: Path) -> Iterator[None]:
    """All engines of these tests share one compiler; to read a vocabulary takes a second."""
    compiler = FormatCompiler.load(model_folder, num_threads=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FormatCompiler, "load", lambda *_: compiler)
        yield


def requests_with(which: list[int], max_tokens: int = MAX_TOKENS, **columns: Any) -> RequestTable:
    """One request per entry: the number of its format, or -1 for free text."""
    prompts = [[100 + i, 7, 300 + 2 * i, 9] for i in range(len(which))]
    table = greedy_table(prompts, [max_tokens] * len(which))
    sampling = SamplingColumns.greedy(len(which), max_tokens, response_format=np.array(which), **columns)
    return replace(table, sampling=replace(sampling, response_formats=FORMATS))


def serve(
    folder: Path,
    requests: RequestTable,
    options: EngineOptions = OPTIONS,
    outputs_so_far: dict[int, np.ndarray] | None = None,
    num_steps: int | None = None,
) -> tuple[list[Finished | None], Scheduler]:
    """What became of each request, in table order, and the scheduler; None where ``num_steps`` were not enough."""
    executor = load_cpu_executor(folder, requests, "float32", options)
    scheduler = make_scheduler(executor, requests, eos_token_ids=EOS, outputs_so_far=outputs_so_far)
    ended: dict[int, Finished] = {}
    for number, record in enumerate(run_steps(scheduler, executor), start=1):
        ended |= {finished.request: finished for finished in record.finished}
        if number == num_steps:
            break
    return [ended.get(request) for request in range(requests.num_requests)], scheduler


def tokens_of(ended: list[Finished | None]) -> list[list[int]]:
    return [finished.token_ids.tolist() for finished in ended if finished is not None]


def assert_keeps(text: str, number: int) -> None:
    response_format = FORMATS[number]
    if response_format.is_json:
        jsonschema.validate(json.loads(text), json.loads(response_format.text))
    elif response_format.kind == "regex":
        assert re.fullmatch(response_format.text, text)
    else:
        assert re.fullmatch(r"\((\(*[x-z]\)*)(,\(*[x-z]\)*){0,2}\)", text)
        assert text.count("(") == text.count(")")


SAMPLED = {"temperature": 1.0, "top_k": 40, "min_p": 0.001, "presence_penalty": 0.3, "repetition_penalty": 1.1}


@pytest.mark.parametrize("columns", [{}, {"temperature": 1.5}, SAMPLED, {"ignore_eos": True}], ids=str)
def test_texts_keep_to_their_formats(model_folder: Path, tokenizer: PromptTokenizer, columns: dict[str, Any]) -> None:
    which = [number for number in range(len(FORMATS)) for _ in range(4)]
    columns = columns or {"repetition_penalty": 1.2}  # a greedy random model repeats itself up to max_tokens
    ended, _ = serve(model_folder, requests_with(which, **columns))
    num_whole = 0
    for number, finished in zip(which, ended, strict=True):
        assert finished is not None
        if finished.finish_reason == "stop":
            assert_keeps(tokenizer.decode(finished.token_ids.tolist()), number)
            num_whole += 1
    assert num_whole >= len(which) * 3 // 4


def test_a_text_that_is_whole_ends_at_once_and_without_an_end_token(model_folder: Path, tokenizer: PromptTokenizer) -> None:
    ended, _ = serve(model_folder, requests_with([4, 4], ignore_eos=np.array([False, True]), temperature=1.0))
    for finished in ended:
        assert finished is not None
        assert finished.finish_reason == "stop"
    whole, endless = (finished.token_ids.tolist() for finished in ended if finished is not None)
    assert tokenizer.eos_token_ids == EOS
    assert EOS[0] not in endless
    assert re.fullmatch(FORMATS[4].text, tokenizer.decode(endless))
    assert re.fullmatch(FORMATS[4].text, tokenizer.decode(whole))


def test_a_text_that_is_cut_is_a_beginning_of_its_format(model_folder: Path, tokenizer: PromptTokenizer) -> None:
    (finished,), _ = serve(model_folder, requests_with([0], max_tokens=3))
    assert finished is not None
    assert finished.finish_reason == "length"
    assert re.match(r"\{\s*", tokenizer.decode(finished.token_ids.tolist()))


def test_free_rows_write_the_same_beside_structured_ones(model_folder: Path) -> None:
    columns = {"temperature": 1.0, "logprobs": 3}
    alone, _ = serve(model_folder, requests_with([-1] * 6, max_tokens=24, **columns))
    mixed, _ = serve(model_folder, requests_with([-1, 0, -1, 4, -1, 1], max_tokens=24, **columns))
    assert tokens_of(alone)[::2] == tokens_of(mixed)[::2]
    assert tokens_of(alone)[1::2] != tokens_of(mixed)[1::2]


def test_a_retracted_text_goes_on_where_it_was(model_folder: Path) -> None:
    requests = requests_with([0, 1, 2, 3, 4, 5, 0, 0, 0, 0], temperature=1.0)
    undisturbed, _ = serve(model_folder, requests)
    retracted, scheduler = serve(model_folder, requests, OPTIONS.model_copy(update={"kv_cache_tokens": 176}))
    assert scheduler.counters.num_retractions > 0
    assert tokens_of(retracted) == tokens_of(undisturbed)


def test_a_later_engine_goes_on_where_an_earlier_one_stopped(model_folder: Path) -> None:
    requests = requests_with([0, 1, 2, 5, 0, 4], temperature=1.0)
    undisturbed, _ = serve(model_folder, requests)
    begun, scheduler = serve(model_folder, requests, num_steps=9)
    ended, _ = serve(model_folder, requests, outputs_so_far=scheduler.unfinished_outputs())
    assert any(finished is None for finished in begun)
    continued = [early or late for early, late in zip(begun, ended, strict=True)]
    assert tokens_of(continued) == tokens_of(undisturbed)


def test_logprobs_are_those_of_the_model_and_not_of_the_format(model_folder: Path) -> None:
    requests = requests_with([4], temperature=0.0, logprobs=1)
    executor = load_cpu_executor(model_folder, requests, "float32", OPTIONS)
    record = next(run_steps(make_scheduler(executor, requests), executor))
    logprobs = record.result.logprobs
    assert logprobs is not None
    assert np.isfinite(logprobs.top).all()
    assert logprobs.top_token_ids[0, 0] != record.result.token_ids[0]
    assert logprobs.chosen[0] < logprobs.top[0, 0]


def test_nothing_is_loaded_where_no_row_has_a_format(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blendserve_core.engine.grammars.Grammars", None)
    requests = requests_with([-1])
    free = replace(requests, sampling=replace(requests.sampling, response_formats=()))
    ended, _ = serve(model_folder, replace(free))
    assert ended[0] is not None
