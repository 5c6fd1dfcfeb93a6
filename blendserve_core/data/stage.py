"""Stage: read the rows once, tokenize their prompts, and leave on disk all that later stages need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from blendserve_core.data.check import check_columns, has_request_id
from blendserve_core.data.columns import Columns
from blendserve_core.data.context import fit_context
from blendserve_core.data.duplicate_ids import DuplicateIds
from blendserve_core.data.generation import failed
from blendserve_core.data.openai.bodies import Requests, read_requests
from blendserve_core.data.prompts import read_prompts
from blendserve_core.data.request_columns import RequestColumns
from blendserve_core.data.reuse import EarlierOutput
from blendserve_core.data.rolling import RollingWriter
from blendserve_core.data.row_error import RowError
from blendserve_core.data.sampling_columns import RowSampling, read_sampling
from blendserve_core.data.source import Source
from blendserve_core.data.staged_files import MANIFEST_FILE, ErrorWriter, TokenWriter, clear, input_parts
from blendserve_core.data.work_items import part_work
from blendserve_core.structured.checker import FormatChecker
from blendserve_core.structured.formats import read_format
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.manifest import StageManifest
from schemas.parameters import JobParameters, SamplingDefaults


@dataclass(frozen=True, slots=True)
class _StagedBatch:
    """Token ids of the rows that can be served ([num_rows] lengths, one flat array), their sampling, and the others' errors."""

    lens: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    max_tokens: NDArray[np.int64]
    sampling: RowSampling
    errors: dict[int, RowError]


def stage(
    parameters: JobParameters,
    source: Source,
    tokenizer: PromptTokenizer,
    max_context_tokens: int,
    folder: Path,
    earlier: EarlierOutput | None = None,
) -> StageManifest:
    """Fill ``folder`` with the request table, the input's rows (``input-*.parquet``), error rows and, last, a manifest.

    Of requests that ask for the same one is in the table; those that have an outcome in ``earlier`` are not.
    A row that cannot be served becomes an error row. ValueError, before any row is generated, is for what makes the whole job
    senseless: no prompt column, names that collide with the output's, ids that are not unique, files that cannot be read.
    """
    started = perf_counter()
    columns = check_columns(source.schema, parameters)
    with FormatChecker(tokenizer.folder) as formats:
        _check_defaults(parameters.sampling, formats)
        folder.mkdir(parents=True, exist_ok=True)
        clear(folder)
        num_rows, num_errors, requests = _stage_rows(
            parameters, source, columns, tokenizer, formats, max_context_tokens, folder
        )
    everything = requests.finish(folder)
    work = part_work(everything, earlier, folder)
    manifest = StageManifest(
        num_requests=num_rows,
        num_sequences=work.requests.num_requests,
        num_duplicates=work.num_duplicates,
        num_reused=work.num_reused,
        num_errors=num_errors,
        num_prompt_tokens=requests.num_prompt_tokens,
        has_request_id=has_request_id(source.schema, columns),
        wants_logprobs=bool((everything.table.sampling.logprobs >= 0).any()),
        stage_s=perf_counter() - started,
    )
    manifest.write(folder / MANIFEST_FILE)
    return manifest


def _stage_rows(
    parameters: JobParameters,
    source: Source,
    columns: Columns,
    tokenizer: PromptTokenizer,
    formats: FormatChecker,
    max_context_tokens: int,
    folder: Path,
) -> tuple[int, int, RequestColumns]:
    """Stream the rows to disk; returns their number, the number of error rows, and the request columns."""
    num_rows = 0
    requests = RequestColumns(parameters.sampling.seed)
    ids = DuplicateIds(columns.request_id) if columns.request_id and parameters.on_duplicate_id == "error" else None
    with RollingWriter(folder, "input", source.schema) as inputs, TokenWriter(folder) as tokens, ErrorWriter(folder) as bad:
        for batch in source.batches():
            staged = _stage_batch(batch, columns, parameters, tokenizer, formats, max_context_tokens)
            starts = tokens.num_tokens + np.cumsum(staged.lens) - staged.lens
            requests.add(num_rows, np.flatnonzero(staged.lens), starts, staged.lens, staged.max_tokens, staged.sampling)
            tokens.write(staged.token_ids)
            bad.write([failed(num_rows + row, error) for row, error in sorted(staged.errors.items())])
            inputs.write(batch)
            if ids:
                ids.add(batch)
            num_rows += batch.num_rows
    if ids:
        ids.refuse(input_parts(folder), source.describe_rows)
    return num_rows, bad.num_errors, requests


def _stage_batch(
    batch: pa.RecordBatch,
    columns: Columns,
    parameters: JobParameters,
    tokenizer: PromptTokenizer,
    formats: FormatChecker,
    max_context_tokens: int,
) -> _StagedBatch:
    requests = read_requests(batch) if columns.prompt_kind == "body" else Requests(batch, errors={})
    sampling = read_sampling(requests.rows, columns.sampling, parameters.sampling, tokenizer.vocab_size)
    formats.check(sampling.response_formats, sampling.errors)
    prompts = read_prompts(requests.rows, columns, tokenizer, skipped=requests.errors | sampling.errors)
    max_tokens = sampling.numbers["max_tokens"]
    lens, token_ids, too_long = fit_context(
        prompts.lens, prompts.token_ids, max_tokens, max_context_tokens, parameters.on_too_long
    )
    return _StagedBatch(
        lens=lens,
        token_ids=token_ids,
        max_tokens=np.minimum(max_tokens, max_context_tokens - lens),
        sampling=sampling,
        errors=requests.errors | sampling.errors | prompts.errors | too_long,
    )


def _check_defaults(defaults: SamplingDefaults, formats: FormatChecker) -> None:
    if "" in defaults.stop:
        raise ValueError("sampling.stop: a stop string must not be empty")
    shared = None if defaults.response_format is None else read_format(defaults.response_format)
    if shared is not None and (problem := formats.problem(shared)) is not None:
        raise ValueError(f"sampling.response_format: {problem.message}")
