"""Compiles the FlashInfer modules that the CUDA engine uses, ahead of time and without a GPU, then loads them and looks for
their functions: ``make cuda-aot``.

For each architecture the files land in OUTPUT/<arch>/aot/<module>/<module>.so. A machine with a GPU needs no compiler when that
``aot`` folder lies under ``flashinfer/data/`` and FLASHINFER_DISABLE_JIT=1 is set. What is compiled already is kept.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEADERS_PACKAGE = "nvidia-curand"
EMPTY_HEADERS = ("cublas_v2.h", "cublasLt.h")
HEAD_DIMS = (64, 128)


def modules() -> dict[str, tuple[Callable[[], Any], tuple[str, ...]]]:
    """By name: what builds and loads a module, and the functions that the engine calls in it."""
    import torch

    def get(place: str, function: str, *args: Any) -> Callable[[], Any]:
        return lambda: getattr(importlib.import_module(f"flashinfer.{place}"), function)(*args)

    found: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
        "silu_and_mul": (get("activation", "get_act_and_mul_module", "silu"), ("silu_and_mul",)),
        "cascade": (get("cascade", "get_cascade_module"), ("merge_state_in_place",)),
        "page": (get("page", "get_page_module"), ("append_paged_kv_cache",)),
        "norm": (get("norm", "get_norm_module"), ("rmsnorm", "fused_add_rmsnorm")),
        "rope": (get("rope", "get_rope_module"), ("apply_rope_pos_ids_cos_sin_cache",)),
        "sampling": (get("sampling", "get_sampling_module"), ("top_k_renorm_probs", "top_p_renorm_probs")),
    }
    for kv_dtype, kv_name in ((torch.bfloat16, "bf16"), (torch.float8_e4m3fn, "fp8")):
        for head_dim in HEAD_DIMS:
            formats = (torch.bfloat16, kv_dtype, torch.bfloat16, torch.int32)
            flags = (head_dim, head_dim, 0, False, False, False, False)
            build = get("prefill", "get_batch_prefill_module", "fa2", *formats, *flags)
            found[f"prefill-{kv_name}-{head_dim}"] = (build, ("plan", "paged_run"))
    return found


def build_one_architecture(names: list[str], output: Path) -> None:
    """In a process whose environment names the architecture."""
    for name, (build, functions) in modules().items():
        if names and name not in names:
            continue
        started = time.perf_counter()
        module = build()
        missing = [function for function in functions if not hasattr(module, function)]
        if missing:
            raise SystemExit(f"{name} was built, but exports no {', '.join(missing)}")
        print(f"{name}: loads, exports {', '.join(functions)} ({time.perf_counter() - started:.0f} s)", flush=True)
    from flashinfer.jit import env

    for library in sorted(Path(env.FLASHINFER_JIT_DIR).rglob("*.so")):
        target = output / "aot" / library.stem / library.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, target)
        print(f"{target}: {library.stat().st_size / 2**20:.1f} MB", flush=True)


def build_environment(architecture: str, output: Path, headers: Path) -> dict[str, str]:
    """With what stands in for the parts of CUDA that only a driver or a library package brings."""
    stubs = output.parent / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    for header in EMPTY_HEADERS:
        (stubs / header).touch()
    if not (stubs / "libcuda.so").exists():
        # The driver's own library is on machines with a GPU only; the linker merely wants its name.
        command = ["gcc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(stubs / "libcuda.so"), "-xc", "-"]
        subprocess.run(command, input="void blendserve_stub(void) {}", text=True, check=True)
    includes = ":".join([*(str(path.parent) for path in headers.rglob("curand.h")), str(stubs)])
    return os.environ | {
        "FLASHINFER_CUDA_ARCH_LIST": architecture,
        "FLASHINFER_WORKSPACE_BASE": str(output),
        "FLASHINFER_EXTRA_LDFLAGS": f"-L{stubs}",
        "CUDA_HOME": os.environ.get("CUDA_HOME", "/usr/local/cuda"),
        "CPATH": includes,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MAX_JOBS": os.environ.get("MAX_JOBS", "1"),
    }


def fetch_headers(folder: Path) -> Path:
    """The headers of cuRAND, from NVIDIA's package of it."""
    if not any(folder.rglob("curand.h")):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), HEADERS_PACKAGE]
        subprocess.run(command, check=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/cuda-aot"))
    parser.add_argument("--arch", nargs="+", default=["9.0a", "8.0"])
    parser.add_argument("--modules", nargs="*", default=[], help="only these; all by default")
    parser.add_argument("--in-environment", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_environment:
        build_one_architecture(arguments.modules, arguments.output)
        return
    headers = fetch_headers(arguments.output.absolute() / "curand")
    for architecture in arguments.arch:
        output = arguments.output.absolute() / f"sm_{architecture.replace('.', '')}"
        print(f"sm_{architecture.replace('.', '')}:", flush=True)
        command = [sys.executable, __file__, "--in-environment", "--output", str(output), "--modules", *arguments.modules]
        subprocess.run(command, env=build_environment(architecture, output, headers), check=True)


if __name__ == "__main__":
    main()
