"""Measured kernel times as arrays: load in, milliseconds or microseconds turned to seconds out.

The tables are those of Vidur (per-layer operators of a model) and of NVIDIA's aiconfigurator (single kernels), as zstd Parquet
with their own column names. They stay outside the repository.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from blendserve_core.perf.model_spec import ModelSpec

Columns = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Load and seconds, both [rows]."""

# Measured milliseconds of one Llama-3-8B layer at sequence length 1024: batch, GEMMs, decode attention (the paper's Table 1).
PAPER_TABLE_1 = np.array([(512, 1.087, 1.317), (768, 1.537, 1.913), (1024, 2.005, 2.515)])


def vidur_layer_gemms(path: Path, model: ModelSpec) -> Columns:
    """Tokens of a step, and seconds of all layers' projections at ``model.tensor_parallel``."""
    table = pl.read_parquet(path).filter(pl.col("num_tensor_parallel_workers") == model.tensor_parallel).sort("num_tokens")
    projections = [name for name in table.columns if name.endswith("proj.median")]
    assert len(projections) == 4, projections
    seconds = table.select(pl.sum_horizontal(projections)).to_series().to_numpy() * 1e-3 * model.num_layers
    return table["num_tokens"].to_numpy().astype(float), seconds


def layer_gemms(path: Path, model: ModelSpec) -> Columns:
    """Tokens of a step, and seconds of all layers' projections, interpolated between measured matrix sizes."""
    degree, width = model.tensor_parallel, model.intermediate_size
    shapes = [
        ((model.query_width + 2 * model.kv_width) // degree, model.hidden_size),
        (model.hidden_size, model.query_width // degree),
        (2 * width // degree, model.hidden_size),
        (model.hidden_size, width // degree),
    ]
    table = _half_precision(path, "gemm_dtype")
    tokens = np.array(sorted(table["m"].unique()), dtype=float)
    seconds = np.array([sum(_gemm_s(table, int(m), n, k) for n, k in shapes) for m in tokens])
    is_measured = np.isfinite(seconds)
    return tokens[is_measured], seconds[is_measured] * model.num_layers


def large_gemm(path: Path, num_rows: int, num_columns: int) -> Columns:
    """Tokens, and seconds of one ``num_rows`` x ``num_columns`` projection that was measured as such."""
    table = _half_precision(path, "gemm_dtype").filter((pl.col("n") == num_rows) & (pl.col("k") == num_columns)).sort("m")
    return table["m"].to_numpy().astype(float), table["latency"].to_numpy() * 1e-3


def prefill_attention(path: Path, model: ModelSpec) -> Columns:
    """(query, key) pairs, and seconds of one layer's causal attention; prompts from 512, steps of 1,024 to 16,384 tokens."""
    table = _attention(path, model).with_columns(tokens=pl.col("batch_size") * pl.col("isl"))
    table = table.filter((pl.col("isl") >= 512) & pl.col("tokens").is_between(1024, 16384))
    length, batch = table["isl"].to_numpy().astype(float), table["batch_size"].to_numpy()
    return batch * length * (length + 1) / 2, table["latency"].to_numpy() * 1e-3


def decode_attention(path: Path, model: ModelSpec) -> Columns:
    """KV tokens read, and seconds of one layer's decode attention; 64 sequences and more with contexts of 256 and more."""
    table = _attention(path, model).with_columns(context=pl.col("step") + 1)
    table = table.filter((pl.col("batch_size") >= 64) & (pl.col("context") >= 256))
    return (table["batch_size"] * table["context"]).to_numpy().astype(float), table["latency"].to_numpy() * 1e-3


def all_reduce(path: Path) -> Columns:
    """Bytes each link carries, 2 (n - 1) / n of the message, and seconds; messages of 128 KiB to 64 MiB over 2 to 8 devices.

    The table counts two-byte elements: read as bytes, its largest messages would run at half the rate of the links.
    """
    table = pl.read_parquet(path).filter(pl.col("backend").str.ends_with("graph"))
    table = table.filter(pl.col("message_size").is_between(2**16, 2**25))
    num_devices = table["num_gpus"].to_numpy().astype(float)
    return 2 * table["message_size"].to_numpy() * 2 * (num_devices - 1) / num_devices, table["latency"].to_numpy() * 1e-3


def vidur_all_reduce(path: Path) -> Columns:
    """The same from Vidur's table: sizes in bytes, devices of one machine, the slowest rank's time."""
    table = pl.read_parquet(path).filter(pl.col("size").is_between(2**17, 2**26))
    table = table.filter(pl.col("devices_per_node") == pl.col("num_workers"))
    slowest = pl.col("time_stats.all_reduce.median").max().alias("ms")
    table = table.group_by("num_workers", "size").agg(slowest).sort("num_workers", "size")
    num_devices = table["num_workers"].to_numpy().astype(float)
    link_bytes = table["size"].to_numpy() * 2 * (num_devices - 1) / num_devices
    return link_bytes, table["ms"].to_numpy() * 1e-3


def _half_precision(path: Path, column: str) -> pl.DataFrame:
    return pl.read_parquet(path).filter(pl.col(column) == "bfloat16")


def _attention(path: Path, model: ModelSpec) -> pl.DataFrame:
    """Rows of full attention with the model's heads on one device."""
    table = _half_precision(path, "kv_cache_dtype").filter(
        (pl.col("num_heads") == model.num_heads // model.tensor_parallel)
        & (pl.col("num_key_value_heads") == max(1, model.num_kv_heads // model.tensor_parallel))
        & (pl.col("head_dim") == model.head_dim)
    )
    return table.filter(pl.col("window_size") == 0) if "window_size" in table.columns else table


def _gemm_s(table: pl.DataFrame, m: int, n: int, k: int) -> float:
    """Seconds of an m x n x k product: linear in n, then in k, between the neighbouring measured sizes."""
    rows = table.filter(pl.col("m") == m)
    ks = _neighbours(rows["k"], k)
    if not ks:
        return np.nan
    seconds = []
    for known_k in ks:
        column = rows.filter(pl.col("k") == known_k).sort("n")
        seconds.append(np.interp(n, column["n"].to_numpy(), column["latency"].to_numpy(), left=np.nan, right=np.nan))
    return float(np.interp(k, ks, seconds)) * 1e-3


def _neighbours(values: pl.Series, wanted: int) -> list[int]:
    known = sorted(values.unique())
    below, above = [v for v in known if v <= wanted], [v for v in known if v >= wanted]
    return sorted({below[-1], above[0]}) if below and above else []
