"""Builds the native kernels with the machine's C++ compiler, once per source, and loads them."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

SOURCE_FOLDER = Path(__file__).parent
COMPILE_FLAGS = (
    "-O3",
    "-std=c++20",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
)


class NativeUnavailableError(RuntimeError):
    """The native kernels cannot be built or loaded here; the message says why and what to install."""


def default_cache_folder() -> Path:
    """``$XDG_CACHE_HOME/blendserve/native``, by default under ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blendserve" / "native"


def load_library(cache_folder: Path | None = None) -> ctypes.CDLL:
    """The kernels as a shared library, compiled into the cache folder if no build of these sources is there.

    ctypes releases the GIL during calls. Raises NativeUnavailableError.
    """
    path = build_library(cache_folder or default_cache_folder())
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailableError(f"cannot load the native kernels from {path}: {error}") from error
    library.blend_best_isa.restype = ctypes.c_int32
    library.blend_has_matrix_unit.restype = ctypes.c_int32
    library.blend_linear_panel.restype = ctypes.c_int32
    library.blend_linear.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
    struct_then_sizes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
    library.blend_attention.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
    library.blend_rope_and_append.argtypes = struct_then_sizes
    library.blend_rms_norm.argtypes = struct_then_sizes
    library.blend_silu_and_multiply.argtypes = struct_then_sizes
    library.blend_merge_states.argtypes = struct_then_sizes
    library.blend_sum_words.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.blend_sum_words.restype = ctypes.c_uint32
    return library


def build_library(cache_folder: Path) -> Path:
    """Path of the compiled kernels; compiles only when the cache has none for these sources, flags and machine type."""
    path = cache_folder / f"kernels-{_build_key()}.so"
    if path.exists():
        return path
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if compiler is None:
        raise NativeUnavailableError("no C++ compiler: install g++ (or set CXX) to get the native CPU kernels")
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder) as folder:
            built = _compile(compiler, Path(folder) / "kernels.so")
            built.replace(path)  # atomic, so engines that start together never load half a file
    except OSError as error:
        raise NativeUnavailableError(f"cannot build the native kernels in {cache_folder}: {error}") from error
    logger.info("built the native kernels: %s", path)
    return path


def _compile(compiler: str, target: Path) -> Path:
    command = [compiler, *COMPILE_FLAGS, str(SOURCE_FOLDER / "kernels.cpp"), "-o", str(target)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise NativeUnavailableError(f"{' '.join(command)} failed:\n{result.stderr.strip()[-2000:]}")
    return target


def _build_key() -> str:
    digest = hashlib.sha256()
    for source in sorted([*SOURCE_FOLDER.glob("*.cpp"), *SOURCE_FOLDER.glob("*.inc")]):
        digest.update(source.read_bytes())
    digest.update(" ".join([*COMPILE_FLAGS, platform.machine()]).encode())
    return digest.hexdigest()[:16]
