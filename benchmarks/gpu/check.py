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
from dataclasses import asdict
from pathlib import Path

import torch
from bench import Bench, Findings
from correctness import check_attention, check_tokens
from cut_steps import check_cut_steps
from overlap_times import measure_rates, overlap_times
from serving_time import serve_for, shorter_videos

from blendserve_core.engine.cpu.attention_times import plain_step
from blendserve_core.engine.cuda.calibrate import device_seconds
from blendserve_core.engine.cuda.graphs import cuda_capture
from blendserve_core.engine.cuda.kernels import flashinfer_kernels
from blendserve_core.engine.cuda.program import Lane
from blendserve_core.engine.cuda.rank import SM_CHOICES
from blendserve_core.engine.cuda.split_sms import green_streams, one_stream, plain_streams
from blendserve_core.engine.cuda.step_runner import Overlap
from blendserve_core.sim.mix import PAPER_TRACES
from blendserve_core.sim.workload import mixed_workload

NUM_REQUESTS, MAX_TOKENS = 3500, 8192
ROOFLINE_ROWS, ROOFLINE_CONTEXT = 512, 1024
# Before the clock runs: planner and scheduler are compiled when first used, and common steps are captured.
WARM_UP_S = 8.0
# What must come out on an H200.
MIN_GREEN_SPEED_UP = 1.2
MIN_BLEND_SPEED_UP = 1.3
MIN_ROOFLINE_SHARE = 0.8
MAX_GAP_SHARE = 0.05


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


def correctness(bench: Bench, findings: Findings) -> None:
    checks = check_attention(bench.kernels, bench.device, bench.dtype)
    checks += check_tokens(bench.folder / "tiny", bench.make_kernels, is_on_gpu=bench.device.type == "cuda")
    findings.note_checks("correctness", checks)


def cut_steps(bench: Bench, findings: Findings) -> None:
    """Whether any wait is missing on real streams, and whether a capture holds on to its part of the device."""
    others = {"streams": plain_streams(bench.device)}
    others |= {f"green {num_sms}": green_streams(bench.device, num_sms) for num_sms in SM_CHOICES}
    whole, folder = one_stream(bench.device), bench.folder / "cut"
    checks = check_cut_steps(folder, bench.kernels, bench.device, bench.dtype, whole, others, cuda_capture())
    findings.note_checks("cut steps", checks)


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
    model = bench.llama()
    num_rows, context = ROOFLINE_ROWS, ROOFLINE_CONTEXT
    step = plain_step(num_rows, 1, context)
    whole = Overlap(one_stream(bench.device), {}, bench.measurement.overlap)
    runner = bench.runner(model, len(step.page_indices), whole, cuda_capture())

    def run() -> None:
        hidden, _ = runner.run(step)
        model.logits(hidden)

    for _ in range(8):
        run()
    seconds = device_seconds(run)
    cost = bench.cost()
    kv_bytes = num_rows * (context + 1) * bench.page_bytes(1)
    floor_s = kv_bytes / bench.measurement.hardware.kv_bytes_per_s + max(cost.weights_s, cost.gemm_token_s * num_rows)
    share = floor_s / seconds
    findings.note("decode-only step", f"{seconds * 1e3:.2f} ms, {share:.0%} of its roofline", share >= MIN_ROOFLINE_SHARE)
    findings.details["roofline"] = {"seconds": seconds, "floor_s": floor_s, "num_rows": num_rows, "context": context}


def serving(bench: Bench, findings: Findings) -> None:
    """Requests like the paper's trace 2, about a minute of them, under either policy."""
    model = bench.llama()
    cost = bench.cost()
    workload = mixed_workload(PAPER_TRACES[2], NUM_REQUESTS, cost, seed=0, long_output=shorter_videos, max_tokens=MAX_TOKENS)
    workload = workload.for_model(model.config.vocab_size)
    served = {}
    for policy in ("depth-first", "blend"):
        executor = bench.executor(model, workload.requests)
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
