"""Fit hardware profiles to measured kernel tables: ``python infra/hardware/fit.py FOLDER [--write]``.

FOLDER holds ``vidur/`` and ``aiconfigurator/``. Every kernel is a line, fixed seconds plus load over rate, fitted to the
relative error (the paper's three points: to the absolute one); a small GEMM never takes less than reading its weights.
``--write`` renews the JSON profiles beside this file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tables import (
    PAPER_TABLE_1,
    Columns,
    all_reduce,
    decode_attention,
    large_gemm,
    layer_gemms,
    prefill_attention,
    vidur_all_reduce,
    vidur_layer_gemms,
)

from blendserve_core.perf.hardware import HardwareSpec
from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.perf.presets import llama_2_7b, llama_3_8b

FULL_STEP_TOKENS = (256, 4096)
SMALL_STEP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Line:
    """``fixed_s + load * per_unit_s``, where it came from, and how far off it is (relative errors)."""

    source: str
    fixed_s: float
    per_unit_s: float
    num_rows: int
    mean_error: float
    max_error: float

    @classmethod
    def fit(cls, source: str, columns: Columns, between: tuple[float, float] = (0, np.inf), *, relative: bool = True) -> Line:
        load, seconds = columns
        used = (load >= between[0]) & (load <= between[1])
        load, seconds = load[used], seconds[used]
        weight = 1 / seconds if relative else np.ones(len(load))
        rows = np.stack([weight, load * weight], axis=1)
        (fixed_s, per_unit_s), *_ = np.linalg.lstsq(rows, seconds * weight, rcond=None)
        return cls(source, float(fixed_s), float(per_unit_s), 0, 0.0, 0.0).judged((load, seconds))

    def judged(self, columns: Columns, floor_s: float = 0.0) -> Line:
        """The same line with its errors over these rows, where it never takes less than ``floor_s``."""
        load, seconds = columns
        errors = np.abs(np.maximum(self.fixed_s + self.per_unit_s * load, floor_s) / seconds - 1)
        return replace(self, num_rows=len(load), mean_error=float(errors.mean()), max_error=float(errors.max()))


@dataclass(frozen=True, slots=True)
class Profile:
    """A spec with the lines it comes from, by kernel, and what no table could tell."""

    spec: HardwareSpec
    fits: dict[str, Line]
    remarks: str

    def as_dict(self) -> dict[str, Any]:
        spec = {name: _round(value) for name, value in asdict(self.spec).items()}
        fits = {name: {key: _round(value) for key, value in asdict(line).items()} for name, line in self.fits.items()}
        return {"spec": spec, "fits": fits, "remarks": self.remarks}


def a100_80gb(folder: Path) -> Profile:
    model = llama_3_8b()
    tables = folder / "aiconfigurator"
    batch, gemm_ms, attention_ms = PAPER_TABLE_1.T
    gemm = Line.fit("paper, Table 1", (batch, gemm_ms * 1e-3 * model.num_layers), relative=False)
    decode = Line.fit("paper, Table 1", (batch * 1024, attention_ms * 1e-3), relative=False)
    reduce = Line.fit("aiconfigurator, vLLM 0.14.0 custom all-reduce", all_reduce(_table(tables, "a100", "custom_allreduce")))
    prefill = Line.fit(
        "aiconfigurator, vLLM 0.14.0 flash attention", prefill_attention(_table(tables, "a100", "context_attention"), model)
    )
    kv_bytes_per_s = _layer_kv_bytes(model) / decode.per_unit_s
    spec = HardwareSpec(
        name="a100-80gb",
        gemm_flops_per_s=2 * model.num_parameters / gemm.per_unit_s,
        gemm_fixed_share=gemm.fixed_s * kv_bytes_per_s / _weight_bytes(model),
        lm_head_flops_per_s=256e12,
        weight_bytes_per_s=kv_bytes_per_s,
        attention_flops_per_s=200e12,
        kv_bytes_per_s=kv_bytes_per_s,
        decode_layer_fixed_s=decode.fixed_s,
        memory_bytes=80e9,
        reserved_bytes=3.94e9,
        allreduce_fixed_s=reduce.fixed_s,
        allreduce_bytes_per_s=1 / reduce.per_unit_s,
    )
    return Profile(
        spec,
        {"gemm": gemm, "decode_attention": decode, "all_reduce": reduce, "prefill_attention_not_used": prefill},
        "Weights are read at the rate of decode attention's KV. lm_head at 82 % of peak, prefill attention at 64 %: "
        "Table 1 has neither; the kernel table's slower prefill attention is given for comparison. 60 GB of KV beside "
        "Llama-3-8B.",
    )


def a100_80gb_kernels(folder: Path) -> Profile:
    tables = folder / "aiconfigurator"
    model = llama_3_8b()
    gemms = vidur_layer_gemms(folder / "vidur" / "a100_Meta-Llama-3-8B_mlp.parquet", model)
    return _from_kernels(
        "a100-80gb-kernels",
        model,
        {
            "gemm": ("Vidur, Llama-3-8B projections", gemms),
            "lm_head": ("aiconfigurator, vLLM 0.14.0 GEMM", large_gemm(_table(tables, "a100", "gemm"), 65536, 4096)),
            **_kernel_sources(tables, "a100", "vLLM 0.14.0", model),
        },
        memory=(80e9, 3.94e9),
        remarks="An A100 whose GEMMs and attention are measured alone, without an engine around them.",
    )


def h200(folder: Path) -> Profile:
    tables = folder / "aiconfigurator"
    model = llama_3_8b()
    return _from_kernels(
        "h200",
        model,
        {
            "gemm": ("aiconfigurator, vLLM 0.18.0 GEMM", layer_gemms(_table(tables, "h200", "gemm"), model)),
            "lm_head": ("aiconfigurator, vLLM 0.18.0 GEMM", large_gemm(_table(tables, "h200", "gemm"), 65536, 4096)),
            **_kernel_sources(tables, "h200", "vLLM 0.18.0", model),
        },
        memory=(141e9, 5e9),
        remarks="Norms, rotary embeddings and activations are not in the tables.",
    )


def h100(folder: Path) -> Profile:
    """GEMMs and all-reduce measured; attention is the H200's, its memory traffic slower by the two data sheets' bandwidths."""
    model = llama_2_7b()
    gemm = Line.fit(
        "Vidur, Llama-2-7B projections",
        vidur_layer_gemms(folder / "vidur" / "h100_Llama-2-7b-hf_mlp.parquet", model),
        FULL_STEP_TOKENS,
    )
    reduce = Line.fit("Vidur, DGX", vidur_all_reduce(folder / "vidur" / "h100_dgx_all_reduce.parquet"))
    other = h200(folder).spec
    slower = 3.35 / 4.8
    weight_bytes_per_s = other.weight_bytes_per_s * slower
    spec = HardwareSpec(
        name="h100",
        gemm_flops_per_s=2 * model.num_parameters / gemm.per_unit_s,
        gemm_fixed_share=gemm.fixed_s * weight_bytes_per_s / _weight_bytes(model),
        lm_head_flops_per_s=other.lm_head_flops_per_s,
        weight_bytes_per_s=weight_bytes_per_s,
        attention_flops_per_s=other.attention_flops_per_s,
        kv_bytes_per_s=other.kv_bytes_per_s * slower,
        decode_layer_fixed_s=other.decode_layer_fixed_s,
        memory_bytes=80e9,
        reserved_bytes=4e9,
        allreduce_fixed_s=reduce.fixed_s,
        allreduce_bytes_per_s=1 / reduce.per_unit_s,
    )
    return Profile(spec, {"gemm": gemm, "all_reduce": reduce}, "Attention, lm_head and weight reads scaled from the H200.")


def _kernel_sources(tables: Path, device: str, version: str, model: ModelSpec) -> dict[str, tuple[str, Columns]]:
    return {
        "prefill_attention": (
            f"aiconfigurator, {version} flash attention",
            prefill_attention(_table(tables, device, "context_attention"), model),
        ),
        "decode_attention": (
            f"aiconfigurator, {version} flash attention",
            decode_attention(_table(tables, device, "generation_attention"), model),
        ),
        "all_reduce": (
            f"aiconfigurator, {version} custom all-reduce",
            all_reduce(_table(tables, device, "custom_allreduce")),
        ),
    }


def _from_kernels(
    name: str,
    model: ModelSpec,
    sources: dict[str, tuple[str, Columns]],
    memory: tuple[float, float],
    remarks: str,
) -> Profile:
    ranges = {"gemm": FULL_STEP_TOKENS, "lm_head": FULL_STEP_TOKENS}
    fits = {key: Line.fit(source, columns, ranges.get(key, (0, np.inf))) for key, (source, columns) in sources.items()}
    tokens, seconds = sources["gemm"][1]
    floor_s = float(seconds[tokens <= SMALL_STEP_TOKENS].mean())
    up_to_full = tokens <= FULL_STEP_TOKENS[1]
    fits["gemm_with_floor"] = fits["gemm"].judged((tokens[up_to_full], seconds[up_to_full]), floor_s)
    spec = HardwareSpec(
        name=name,
        gemm_flops_per_s=2 * model.num_parameters / fits["gemm"].per_unit_s,
        gemm_fixed_share=fits["gemm"].fixed_s / floor_s,
        lm_head_flops_per_s=2 * 65536 * 4096 / fits["lm_head"].per_unit_s,
        weight_bytes_per_s=_weight_bytes(model) / floor_s,
        attention_flops_per_s=4 * model.query_width / fits["prefill_attention"].per_unit_s,
        kv_bytes_per_s=_layer_kv_bytes(model) / fits["decode_attention"].per_unit_s,
        decode_layer_fixed_s=fits["decode_attention"].fixed_s,
        memory_bytes=memory[0],
        reserved_bytes=memory[1],
        allreduce_fixed_s=fits["all_reduce"].fixed_s,
        allreduce_bytes_per_s=1 / fits["all_reduce"].per_unit_s,
    )
    return Profile(spec, fits, remarks)


def _weight_bytes(model: ModelSpec) -> int:
    return model.num_parameters * model.dtype_bytes


def _layer_kv_bytes(model: ModelSpec) -> float:
    return model.kv_bytes_per_token / model.num_layers


def _table(tables: Path, device: str, kernel: str) -> Path:
    (path,) = tables.glob(f"{device}_sxm_vllm*_{kernel}_perf.parquet")
    return path


def _round(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


PROFILES: tuple[Callable[[Path], Profile], ...] = (a100_80gb, a100_80gb_kernels, h100, h200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    for make in PROFILES:
        profile = make(arguments.folder)
        for kernel, line in profile.fits.items():
            print(
                f"{profile.spec.name:18} {kernel:26} {line.num_rows:5} rows, error mean {line.mean_error:6.1%} "
                f"max {line.max_error:6.1%}  ({line.source})"
            )
        if arguments.write:
            path = Path(__file__).parent / f"{profile.spec.name}.json"
            path.write_text(json.dumps(profile.as_dict(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
