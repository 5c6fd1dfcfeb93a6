"""Everything about the CUDA engine that only a GPU can tell, in under six minutes on one H200, without a network.

    python benchmarks/gpu/check.py --output gpu-check.json

It needs PyTorch for CUDA and FlashInfer, whose ahead-of-time files it uses where they are (``make cuda-aot``).
Weights are random, of Llama-3-8B's shape. The last thing printed is one table; the JSON holds the same and more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from correctness import Check, check_attention, check_tokens
from cut_steps import check_cut_steps
from idle import IdleMeter, MeteredExecutor, MeteredLanes, metered_capture
from overlap_times import measure_rates, overlap_times
from random_model import LLAMA_3_8B, config_folder, random_model
from serving_time import serve_for, shorter_videos

from blendserve_core.engine.cpu.attention_times import plain_step
from blendserve_core.engine.cuda.attention import AttentionSetting
from blendserve_core.engine.cuda.calibrate import OperatorBench, device_seconds
from blendserve_core.engine.cuda.executor import CudaExecutor
from blendserve_core.engine.cuda.graphs import BUCKET_ROWS, Capture, cuda_capture
from blendserve_core.engine.cuda.kernels import Kernels, flashinfer_kernels
from blendserve_core.engine.cuda.kv_pool import DeviceKVPool
from blendserve_core.engine.cuda.memory import page_bytes
from blendserve_core.engine.cuda.ops import FlashInferOps
from blendserve_core.engine.cuda.program import Lane
from blendserve_core.engine.cuda.rank import PAGE_SIZE, SM_CHOICES, free_bytes
from blendserve_core.engine.cuda.sampling import CudaSampler, DeviceSampler
from blendserve_core.engine.cuda.split_sms import green_streams, one_stream, plain_streams
from blendserve_core.engine.cuda.step_runner import Overlap, StepRunner
from blendserve_core.engine.cuda.workspaces import Workspaces, graph_workspace_bytes
from blendserve_core.engine.model.config import ModelConfig
from blendserve_core.engine.model.llama import Decoder
from blendserve_core.engine.sampler import Sampler
from blendserve_core.perf.cost import CostModel
from blendserve_core.perf.cuda_measured import CudaMeasurement
from blendserve_core.perf.presets import llama_3_8b
from blendserve_core.requests import RequestTable
from blendserve_core.schedule.step import Capacity
from blendserve_core.sim.mix import PAPER_TRACES
from blendserve_core.sim.workload import Workload, mixed_workload
from schemas.parameters import EngineOptions

DTYPE = torch.bfloat16
NUM_REQUESTS, MAX_TOKENS = 3500, 8192
MAX_SEQUENCES = 1024
MAX_STEP_TOKENS = 2048
# Before the clock runs: planner and scheduler are compiled when first used, and common steps are captured.
WARM_UP_S = 8.0
WORKSPACE_BYTES = 12 * 2**30
# What must come out on an H200.
MIN_GREEN_SPEED_UP = 1.2
MIN_BLEND_SPEED_UP = 1.3
MIN_ROOFLINE_SHARE = 0.8
MAX_GAP_SHARE = 0.05


@dataclass
class Findings:
    """Rows of the table, and everything in detail."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def note(self, what: str, value: str, is_good: bool | None = None) -> None:
        verdict = {True: "ok", False: "BELOW TARGET", None: ""}[is_good]
        self.rows.append((what, value, verdict))
        print(f"{what}: {value} {verdict}", flush=True)

    def table(self) -> str:
        widths = [max(len(row[i]) for row in self.rows) for i in range(3)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in self.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--seconds", type=float, default=90.0, help="of serving at most, for each of two policies")
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    arguments = parser.parse_args()
    bench = Bench(torch.device("cuda", 0), flashinfer_kernels, Path(tempfile.mkdtemp()), arguments.seconds)
    sys.exit(not check(bench, torch.cuda.get_device_name(0), arguments.only, arguments.output))


def check(bench: Bench, device_name: str, sections: list[str], output: Path) -> bool:
    """Run the sections, write the JSON, and print the table last. Returns whether every target was reached."""
    started = time.perf_counter()
    findings = Findings()
    findings.note("device", device_name)
    for name in sections:
        # One section that fails must not hide what the others find.
        try:
            SECTIONS[name](bench, findings)
        except Exception as error:
            findings.note(name, f"{type(error).__name__}: {error}", is_good=False)
        torch.cuda.empty_cache()
    findings.note("all of it", f"{time.perf_counter() - started:.0f} s")
    findings.details["table"] = findings.rows
    output.write_text(json.dumps(findings.details, indent=2, default=str), encoding="utf-8")
    print("\n" + findings.table())
    return all(verdict != "BELOW TARGET" for _, _, verdict in findings.rows)


@dataclass
class Bench:
    """What the sections share. ``measured`` is there once the overlap section has run."""

    device: torch.device
    make_kernels: Callable[[], Kernels]
    folder: Path
    seconds: float
    measured: CudaMeasurement | None = None

    @property
    def kernels(self) -> Kernels:
        return self.make_kernels()

    def operators(self) -> OperatorBench:
        folder = config_folder(self.folder / "llama-3-8b", LLAMA_3_8B)
        return OperatorBench.make(folder, "bfloat16", EngineOptions(), self.kernels, self.device, device_seconds)

    def cost(self) -> CostModel:
        assert self.measured is not None, "the overlap section measures the device"
        return CostModel(llama_3_8b(), self.measured.hardware, "overlapped", self.measured.interference)


def correctness(bench: Bench, findings: Findings) -> None:
    checks = check_attention(bench.kernels, bench.device, DTYPE)
    checks += check_tokens(bench.folder / "tiny", bench.make_kernels, is_on_gpu=bench.device.type == "cuda")
    _note_checks(findings, "correctness", checks)


def cut_steps(bench: Bench, findings: Findings) -> None:
    """Whether any wait is missing on real streams, and whether a capture holds on to its part of the device."""
    others = {"streams": plain_streams(bench.device)}
    others |= {f"green {num_sms}": green_streams(bench.device, num_sms) for num_sms in SM_CHOICES}
    whole, folder = one_stream(bench.device), bench.folder / "cut"
    checks = check_cut_steps(folder, bench.kernels, bench.device, DTYPE, whole, others, cuda_capture())
    _note_checks(findings, "cut steps", checks)


def _note_checks(findings: Findings, name: str, checks: list[Check]) -> None:
    for check in checks:
        findings.note(check.name, f"{check.value:.2e}", check.is_good)
    findings.details[name] = [asdict(check) for check in checks]


def rates(bench: Bench, findings: Findings) -> None:
    found = measure_rates(device_seconds, bench.device)
    findings.note("GEMM", f"{found.gemm_flops_per_s / 1e12:.0f} TFLOP/s")
    findings.note("copy", f"{found.copy_bytes_per_s / 1e12:.2f} TB/s")
    findings.details["rates"] = asdict(found)


def overlap(bench: Bench, findings: Findings) -> None:
    """Times of a cut step on every kind of lanes; the cost model is calibrated with them."""
    operators, whole, streams = bench.operators(), one_stream(bench.device), plain_streams(bench.device)
    splits = {num_sms: green_streams(bench.device, num_sms) for num_sms in SM_CHOICES}
    timings = operators.timings(whole, splits, streams)
    properties = torch.cuda.get_device_properties(bench.device)
    bench.measured = timings.measurement(properties.name, properties.multi_processor_count, float(properties.total_memory))
    findings.details["measured"] = asdict(bench.measured)
    others = {"streams": streams} | {f"green {num_sms}": lanes for num_sms, lanes in splits.items()}
    times = overlap_times(operators, whole, others)
    for time_ in times:
        findings.note(f"overlap {time_.lanes}, Tg:Ta {time_.ratio}", f"{time_.speed_up:.2f}x serial")
    best = max(time_.speed_up for time_ in times if time_.ratio == "1:1" and time_.lanes.startswith("green"))
    findings.note("best green overlap at 1:1", f"{best:.2f}x serial", best >= MIN_GREEN_SPEED_UP)
    findings.details["overlap"] = [asdict(time_) | {"speed_up": time_.speed_up} for time_ in times]


def sm_sets(bench: Bench, findings: Findings) -> None:
    from sm_sets import sms_of

    lanes = green_streams(bench.device, SM_CHOICES[1])
    attention, gemm = (sms_of(lanes.streams[lane]) for lane in (Lane.ATTENTION, Lane.GEMM))
    is_disjoint = attention.isdisjoint(gemm)
    findings.note(
        "multiprocessors of the two contexts", f"{len(attention)} and {len(gemm)}, disjoint: {is_disjoint}", is_disjoint
    )
    findings.details["sm_sets"] = {"attention": sorted(attention), "gemm": sorted(gemm)}


def roofline(bench: Bench, findings: Findings) -> None:
    """A decode-only step against the time that its bytes and operations must take at the measured rates."""
    config, model = _llama(bench)
    num_rows, context = 512, 1024
    step = plain_step(num_rows, 1, context)
    runner = _runner(bench, model, len(step.page_indices), Overlap(one_stream(bench.device), {}, _rates(bench)), cuda_capture())

    def run() -> None:
        hidden, _ = runner.run(step)
        model.logits(hidden)

    for _ in range(8):
        run()
    seconds = device_seconds(run)
    cost = bench.cost()
    kv_bytes = num_rows * (context + 1) * page_bytes(config, DTYPE, 1)
    floor_s = kv_bytes / bench.measured.hardware.kv_bytes_per_s + max(  # type: ignore[union-attr]
        cost.weights_s, cost.gemm_token_s * num_rows
    )
    share = floor_s / seconds
    findings.note("decode-only step", f"{seconds * 1e3:.2f} ms, {share:.0%} of its roofline", share >= MIN_ROOFLINE_SHARE)
    findings.details["roofline"] = {"seconds": seconds, "floor_s": floor_s, "num_rows": num_rows, "context": context}


def serving(bench: Bench, findings: Findings) -> None:
    """Requests like the paper's trace 2, about a minute of them, under either policy."""
    config, model = _llama(bench)
    cost = bench.cost()
    workload = mixed_workload(PAPER_TRACES[2], NUM_REQUESTS, cost, seed=0, long_output=shorter_videos, max_tokens=MAX_TOKENS)
    workload = workload.for_model(config.vocab_size)
    served = {}
    for policy in ("depth-first", "blend"):
        executor = _executor(bench, config, model, workload)
        serve_for(WARM_UP_S, policy, workload, executor, cost)
        executor.meter.reset()
        served[policy] = found = serve_for(bench.seconds, policy, workload, executor, cost)
        idle_share = executor.meter.seconds() / found.seconds
        speed = f"{found.tokens_per_s:,.0f} tokens/s, {found.mean_step_s * 1e3:.1f} ms a step"
        findings.note(f"serving, {policy}", f"{speed}, whole: {found.is_whole}")
        gaps = f"{idle_share:.1%} of the time, scheduling takes {found.schedule_share:.1%}"
        findings.note(f"device idle between steps, {policy}", gaps, idle_share <= MAX_GAP_SHARE)
        findings.details[f"idle share, {policy}"] = idle_share
        del executor
        torch.cuda.empty_cache()
    speed_up = served["blend"].tokens_per_s / served["depth-first"].tokens_per_s
    findings.note("blend over depth-first", f"{speed_up:.2f}x", speed_up >= MIN_BLEND_SPEED_UP)
    findings.details["serving"] = {name: asdict(found) for name, found in served.items()}


def _llama(bench: Bench) -> tuple[ModelConfig, Decoder]:
    config = ModelConfig.from_dict(LLAMA_3_8B)
    return config, random_model(config, FlashInferOps(bench.kernels), DTYPE, bench.device)


def _rates(bench: Bench):
    assert bench.measured is not None
    return bench.measured.overlap


def _runner(bench: Bench, model: Decoder, num_pages: int, overlap_: Overlap, capture: Capture) -> StepRunner:
    pool = DeviceKVPool(model.config, num_pages, PAGE_SIZE, DTYPE, bench.device)
    workspaces = Workspaces.allocate(bench.device, graph_workspace_bytes(model.config, MAX_SEQUENCES + BUCKET_ROWS))
    setting = AttentionSetting.make(bench.kernels, model.config, pool, workspaces, DTYPE, bench.device)
    capacity = Capacity(num_pages, PAGE_SIZE, MAX_STEP_TOKENS, MAX_SEQUENCES, model.config.max_context_tokens)
    return StepRunner(model, setting, capacity, bench.cost(), overlap_, capture)


def _executor(bench: Bench, config: ModelConfig, model: Decoder, workload: Workload) -> MeteredExecutor:
    meter = IdleMeter()
    num_pages = int((free_bytes() - WORKSPACE_BYTES) // page_bytes(config, DTYPE, PAGE_SIZE))
    splits = {num_sms: MeteredLanes(green_streams(bench.device, num_sms), meter) for num_sms in SM_CHOICES}
    overlap_ = Overlap(MeteredLanes(one_stream(bench.device), meter), splits, _rates(bench))
    runner = _runner(bench, model, num_pages, overlap_, metered_capture(cuda_capture(), meter))
    capacity = Capacity(num_pages, PAGE_SIZE, MAX_STEP_TOKENS, MAX_SEQUENCES, config.max_context_tokens)
    requests: RequestTable = workload.requests
    sampler = CudaSampler(Sampler(requests, None), DeviceSampler(bench.kernels), requests)
    return MeteredExecutor(CudaExecutor(model, runner, sampler, capacity), meter)


SECTIONS: dict[str, Callable[[Bench, Findings], None]] = {
    "correctness": correctness,
    "cut-steps": cut_steps,
    "rates": rates,
    "overlap": overlap,
    "sm-sets": sm_sets,
    "roofline": roofline,
    "serving": serving,
}

if __name__ == "__main__":
    main()
