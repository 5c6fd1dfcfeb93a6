"""A tiny model folder, staging in one call, and outcomes as an engine would write them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from blendserve_core.data.parts import Generation, PartWriter
from blendserve_core.data.rolling import parquet_writer
from blendserve_core.data.source import open_source
from blendserve_core.data.stage import stage
from blendserve_core.data.unify import conform
from blendserve_core.data.views import without_views
from blendserve_core.requests import RequestTable
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.manifest import StageManifest
from schemas.parameters import JobParameters

CASES = Path(__file__).parents[1] / "cases"
CONTEXT = 8192
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def byte_tokenizer(folder: Path) -> PromptTokenizer:
    """One token per byte: token counts of a test are lengths of its texts."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return PromptTokenizer.load(folder)


def parameters(requests: Path | str, **options: object) -> JobParameters:
    return JobParameters.model_validate({"requests": str(requests), "output": "unused", **options})


def stage_file(
    requests: Path | str, tokenizer: PromptTokenizer, folder: Path, context: int = CONTEXT, **options: object
) -> StageManifest:
    job = parameters(requests, **options)
    return stage(job, open_source(job), tokenizer, context, folder)


def stage_rows(
    rows: pa.Table | dict[str, list], tokenizer: PromptTokenizer, tmp_path: Path, **options: object
) -> tuple[StageManifest, RequestTable, list[dict]]:
    """Stage a table; returns the manifest, the request table and the error rows."""
    table = rows if isinstance(rows, pa.Table) else pa.table(rows)
    with parquet_writer(tmp_path / "requests.parquet", table.schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(conform(batch, without_views(table.schema)))
    manifest = stage_file(tmp_path / "requests.parquet", tokenizer, tmp_path / "staged", **options)
    return manifest, RequestTable.load(tmp_path / "staged"), read_errors(tmp_path / "staged")


def read_errors(staged: Path) -> list[dict]:
    return pq.read_table(staged / "errors.parquet").to_pylist()


def errors_by_row(staged: Path) -> dict[int, str]:
    return {error["row"]: error["error"]["message"] for error in read_errors(staged)}


def answer_all(staged: Path, folder: Path, *, max_rows: int = 1000, order: list[int] | None = None) -> None:
    """Give each request an outcome that tells which one it was, in part files of ``max_rows``."""
    requests = RequestTable.load(staged)
    wanted = order if order is not None else range(requests.num_requests)
    with PartWriter(folder, max_rows=max_rows) as parts:
        for start in range(0, len(wanted), max_rows):
            parts.extend(outcome(requests, request) for request in wanted[start : start + max_rows])


def outcome(requests: RequestTable, request: int) -> Generation:
    row, sample = int(requests.row[request]), int(requests.sample_index[request])
    return Generation(
        row=row,
        sample_index=sample,
        output_text=f"answer {row}.{sample}",
        output_token_ids=[row % 100, sample],
        finish_reason="stop",
        num_prompt_tokens=int(requests.num_prompt_tokens[request]),
        num_cached_tokens=1,
        num_output_tokens=2,
    )
