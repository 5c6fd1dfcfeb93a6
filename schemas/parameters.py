"""The parameters of a job, as the command line, the Prefect form and the notebook share them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from schemas.credentials import without_credentials

PolicyName = Literal["first-come", "depth-first", "random", "blend-paper", "blend"]
DtypeName = Literal["bfloat16", "float16", "float32"]
OnTooLong = Literal["error", "truncate-left", "truncate-right"]
OnDuplicateId = Literal["error", "keep"]
KernelsName = Literal["auto", "native", "torch"]
DeviceName = Literal["auto", "cpu", "cuda"]
OverlapName = Literal["none", "streams", "green"]
KVDtypeName = Literal["auto", "fp8"]


class SamplingDefaults(BaseModel):
    """What a row gets where it has no column of that name, or null in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int = Field(default=256, ge=1, description="Most output tokens of a row")
    temperature: float = Field(default=0.0, ge=0.0, description="0 is greedy: the most likely token each time")
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, description="Keep the likeliest tokens up to this total probability")
    top_k: int = Field(default=0, ge=-1, description="Keep this many likeliest tokens; 0 or -1 keeps all")
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, description="Drop tokens less likely than this share of the likeliest")
    repetition_penalty: float = Field(default=1.0, gt=0.0, description="Above 1 makes tokens seen before less likely")
    presence_penalty: float = Field(
        default=0.0, ge=-2.0, le=2.0, description="Taken off the logit of each token written so far"
    )
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, description="The same, once per time it was written")
    seed: int = Field(default=0, description="Seed of rows without one of their own")
    stop: list[str] = Field(default_factory=list, description="Strings that end the text; they are cut off")
    stop_token_ids: list[int] = Field(default_factory=list, description="Token ids that end the text")
    n: int = Field(default=1, ge=1, description="Samples per row")
    ignore_eos: bool = Field(default=False, description="Go on to max_tokens whatever the model says")
    logprobs: int | None = Field(default=None, ge=0, le=20, description="Top log-probabilities to keep per token")
    response_format: str | None = Field(
        default=None, description="What texts must look like, as JSON text: a json_schema, json_object, regex or grammar"
    )

    @field_validator("response_format", mode="before")
    @classmethod
    def _as_json_text(cls, value: Any) -> Any:
        return json.dumps(value) if isinstance(value, Mapping) else value


class EngineOptions(BaseModel):
    """Size of an engine. None means: measured or chosen from the machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_step_tokens: int | None = Field(default=None, ge=1, description="Token budget of a step")
    max_sequences: int | None = Field(default=None, ge=1, description="Sequences that may run at once")
    kv_cache_tokens: int | None = Field(default=None, ge=16, description="Tokens the KV pool holds, per shard")
    prefix_sharing: bool = Field(default=True, description="Compute shared prefixes once")
    threads: int | None = Field(default=None, ge=1, description="CPU threads per engine")
    batch_invariant: bool = Field(
        default=False, description="Tokens never depend on what shares a row's batch, in bfloat16 too; a little slower"
    )
    kernels: KernelsName = Field(default="auto", description="CPU kernels: native where they can be built, else torch")
    device: DeviceName = Field(default="auto", description="What runs the model; auto: cuda where GPU and FlashInfer are")
    tensor_parallel: int = Field(default=1, ge=1, le=16, description="GPUs that share each layer")
    overlap: OverlapName = Field(
        default="green", description="GPU: GEMMs beside decode attention, on split multiprocessors (green) or plain streams"
    )
    kv_dtype: KVDtypeName = Field(default="auto", description="GPU: number format of the KV cache; auto is the weights'")


class JobOptions(BaseModel):
    """How a job is run; what it reads and writes, and the groups of options, are added by :class:`JobParameters`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(
        default="demo",
        min_length=1,
        title="Model",
        description="Hub id or local folder; demo is SmolLM2-135M-Instruct",
        json_schema_extra={"position": 2},
    )
    model_revision: str | None = Field(default=None, description="Branch, tag or commit of a model on the hub")
    dataset_config: str | None = Field(default=None, description="Configuration (subset) of a Hugging Face dataset")
    dataset_split: str | None = Field(default=None, description="Split of a Hugging Face dataset")
    dataset_revision: str | None = Field(default=None, description="Revision of a Hugging Face dataset")
    dataset_streaming: bool = Field(default=False, description="Read a Hugging Face dataset as it arrives, keeping no copy")
    limit: int | None = Field(default=None, ge=1, description="Only the first rows")
    policy: PolicyName = Field(default="blend", description="Order in which requests enter the engine")
    shards: int = Field(default=1, ge=1, le=1024, description="Engines that share the work (data parallel)")
    dtype: DtypeName = Field(default="bfloat16", description="Number format of weights and KV cache")
    sample_fraction: float = Field(
        default=0.01, ge=0.0, le=1.0, description="Share of rows generated first to estimate lengths; 0 skips the warm-up"
    )
    group_column: str | None = Field(
        default=None, description="A column of yours whose values differ in output length, for example task"
    )
    on_too_long: OnTooLong = Field(
        default="error", description="Prompts too long for the model: an error of their row, or cut at one end"
    )
    on_duplicate_id: OnDuplicateId = Field(
        default="error", description="Ids that occur twice stop the job, or are kept: rows are told apart by position"
    )
    profile: bool = Field(
        default=False, description="Write a Chrome trace of every shard's steps to the output folder: where the time goes"
    )
    retry_failed: bool = Field(
        default=False, description="Generate again the rows that the last run published as errors, and keep the rest"
    )
    max_error_rate: float = Field(default=0.05, ge=0.0, le=1.0, description="The job fails when more rows end in an error")


class JobParameters(JobOptions):
    """One batch inference job: a dataset of requests in, generations out."""

    requests: str = Field(
        min_length=1,
        title="Requests",
        description="Parquet file, folder, glob or URI; or a Hugging Face dataset (hub id or saved folder)",
        json_schema_extra={"position": 0},
    )
    output: str = Field(
        min_length=1,
        title="Output folder",
        description="Where generations.parquet, manifest.json and report.md go",
        json_schema_extra={"position": 1},
    )
    columns: dict[str, str] = Field(
        default_factory=dict, description="Our column name to yours, for example {'prompt': 'question'}"
    )
    sampling: SamplingDefaults = Field(default_factory=SamplingDefaults, title="Sampling defaults")
    engine: EngineOptions = Field(default_factory=EngineOptions, title="Engine")

    @property
    def title(self) -> str:
        """What a run of this job is called."""
        return f"{Path(without_credentials(self.requests)).name} with {Path(self.model).name}"
