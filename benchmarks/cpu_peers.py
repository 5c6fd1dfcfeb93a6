"""The CPU engine beside vLLM, transformers and llama.cpp: same model folder, same token ids, same forced output lengths.

    python benchmarks/cpu_peers.py --peers runs/peers --make-peers       # installs them once, a few minutes
    python benchmarks/cpu_peers.py --peers runs/peers --output runs/cpu_peers.json

Engines take turns on each workload, and medians count. All use bfloat16 and every core. What is timed is a batch from token ids
to texts: of ours planning and writing rows too, of none its start. transformers and llama.cpp are many times slower; they run
the first rows of each workload, once. An engine that cannot run is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from peers.limit import least_work, measure_machine
from peers.ours import natural_lengths, run_ours
from peers.processes import Peer, Turn, make_peers, peer_commands
from peers.report import OURS, Row, print_summary, summary_of
from peers.workloads import REAL, Workload, real_rows, synthetic_mix

from blendserve_core.engine.model.folder import resolve_model
from blendserve_core.perf.measured import cpu_model
from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.text.tokenizer import PromptTokenizer
from schemas.manifest import EngineManifest

SLOW = ("transformers", "llama.cpp")
SYNTHETIC = "synthetic"


def main() -> None:
    arguments = parse_arguments()
    if arguments.make_peers:
        make_peers(arguments.peers)
        return
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    model_folder = resolve_model("demo")
    rates = measure_machine(ModelSpec.from_config(model_folder, dtype="bfloat16"))
    print(f"{cpu_model()}: {rates.gemm_flops_per_s / 1e9:.0f} GFLOP/s, {rates.read_bytes_per_s / 1e9:.1f} GB/s read")
    results: Row = {"machine": platform.platform(), "cpu": cpu_model(), "rates": rates.__dict__, "workloads": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpu-peers-")))
        peers = start_peers(stack, arguments, model_folder, folder)
        for name in arguments.workloads:
            workload = make_workload(name, model_folder, folder, arguments.share)
            turns = take_turns(workload, peers, arguments, model_folder, folder)
            summary = summary_of(workload, least_work(workload, model_folder, rates), turns)
            print_summary(summary)
            results["workloads"].append(summary)
            arguments.output.write_text(json.dumps(results, indent=2), encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=Path("runs/peers"), help="folder of the peers' environments")
    parser.add_argument("--make-peers", action="store_true", help="install the peers there, and do nothing else")
    parser.add_argument("--output", type=Path, default=Path("runs/cpu_peers.json"), help="where the figures go as JSON")
    parser.add_argument("--workloads", nargs="+", choices=[SYNTHETIC, *REAL], default=[SYNTHETIC, *REAL])
    parser.add_argument("--engines", nargs="*", default=["vllm", *SLOW], help="the peers to run beside ours")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="part of each workload, to try things out")
    parser.add_argument("--slow-share", type=float, default=0.2, help="part of it that the slow peers run, once")
    return parser.parse_args()


def start_peers(stack: ExitStack, arguments: argparse.Namespace, model_folder: Path, folder: Path) -> dict[str, Peer]:
    """The peers that can run, each with its model loaded."""
    peers: dict[str, Peer] = {}
    for name, command in peer_commands(arguments.peers.absolute(), model_folder).items():
        if name in arguments.engines:
            try:
                peers[name] = stack.enter_context(Peer(name, command, folder / f"{name}.log"))
            except ValueError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
    return peers


def make_workload(name: str, model_folder: Path, folder: Path, share: float) -> Workload:
    """Real rows get as many tokens as the model writes for them of its own accord, which our engine finds out first."""
    tokenizer = PromptTokenizer.load(model_folder)
    if name == SYNTHETIC:
        return synthetic_mix(tokenizer.vocab_size).head(share)
    return natural_lengths(real_rows(name, tokenizer).head(share), model_folder, folder / f"lengths-{name}")


def take_turns(
    workload: Workload, peers: dict[str, Peer], arguments: argparse.Namespace, model_folder: Path, folder: Path
) -> dict[str, tuple[Workload, list[Turn]]]:
    """What each engine ran, and its turns."""
    own_turns: list[Turn] = []
    turns: dict[str, tuple[Workload, list[Turn]]] = {OURS: (workload, own_turns)}
    for number in range(arguments.rounds):
        run = run_ours(workload, model_folder, folder / "ours")
        shutil.rmtree(folder / "ours")
        own_turns.append(run.turn)
        print(_engine_line(run.manifest, model_folder), file=sys.stderr)
        for name, peer in peers.items():
            if name not in SLOW or number == 0:
                part = workload.head(arguments.slow_share) if name in SLOW else workload
                turns.setdefault(name, (part, []))[1].append(peer.run(part.save(folder)))
    return turns


def _engine_line(manifest: EngineManifest, model_folder: Path) -> str:
    model = ModelSpec.from_config(model_folder, dtype="bfloat16")
    model_bytes, pool_bytes = 2 * model.num_stored_parameters, manifest.kv_cache_tokens * model.kv_bytes_per_token
    return (
        f"ours: start {manifest.engine_start_s:.1f} s; peak {manifest.peak_memory_bytes / 2**20:.0f} MiB, with a model of "
        f"{model_bytes / 2**20:.0f} and a KV pool of {pool_bytes / 2**20:.0f}"
    )


if __name__ == "__main__":
    main()
