"""The CPU engine beside vLLM, transformers and llama.cpp: same model folder, same token ids, same forced output lengths.

    python benchmarks/cpu_peers.py --peers runs/peers --make-peers       # installs them once, a few minutes
    python benchmarks/cpu_peers.py --peers runs/peers --output runs/cpu_peers.json

Engines take turns on each workload, and medians count. All use bfloat16 and every core. What is timed is a batch from token ids
to texts: of ours planning and writing rows too, of none its start. transformers and llama.cpp are many times slower; they run
the first rows of each workload, once, and are compared with a run of ours on these rows, and in tokens per second with ours on
all rows. One more run of ours is profiled. An engine that cannot run is left out, with the reason.

Workloads can be run one at a time (--workloads NAME): the others' figures stay in the output file, and all are printed;
--workloads with no name only prints them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from peers.limit import MachineRates, least_work, measure_machine
from peers.ours import natural_lengths, run_ours
from peers.processes import Peer, make_peers, peer_commands
from peers.report import OURS, Row, Turns, account_of, print_summary, summary_of
from peers.workloads import REAL, Workload, real_rows, synthetic_mix

from blendserve_core.engine.model.folder import resolve_model
from blendserve_core.perf.measured import cpu_model
from blendserve_core.perf.model_spec import ModelSpec
from blendserve_core.text.tokenizer import PromptTokenizer

# Rows that the slow peers run: two batches of transformers', and some of what llama.cpp does one by one.
SLOW = {"transformers": 32, "llama.cpp": 8}
SYNTHETIC = "synthetic"


def main() -> None:
    arguments = parse_arguments()
    if arguments.make_peers:
        make_peers(arguments.peers)
        return
    if arguments.workloads:
        run_workloads(arguments)
    for summary in read_summaries(arguments.output):
        print_summary(summary)


def run_workloads(arguments: argparse.Namespace) -> None:
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    model_folder = resolve_model("demo")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpu-peers-")))
        workloads = [make_workload(name, model_folder, arguments) for name in arguments.workloads]
        rates = measure_machine(ModelSpec.from_config(model_folder, dtype="bfloat16"))
        print(f"{cpu_model()}: {rates.gemm_flops_per_s / 1e9:.0f} GFLOP/s, {rates.read_bytes_per_s / 1e9:.1f} GB/s read")
        peers = start_peers(stack, arguments, model_folder, folder)
        for workload in workloads:
            keep(arguments.output, compare(workload, peers, arguments, model_folder, folder, rates))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=Path("runs/peers"), help="folder of the peers' environments")
    parser.add_argument("--make-peers", action="store_true", help="install the peers there, and do nothing else")
    parser.add_argument("--output", type=Path, default=Path("runs/cpu_peers.json"), help="where the figures go as JSON")
    parser.add_argument("--workloads", nargs="*", choices=[SYNTHETIC, *REAL], default=[SYNTHETIC, *REAL])
    parser.add_argument("--engines", nargs="*", default=["vllm", *SLOW], help="the peers to run beside ours")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="part of each workload, to try things out")
    return parser.parse_args()


def make_workload(name: str, model_folder: Path, arguments: argparse.Namespace) -> Workload:
    """Real rows get as many tokens as the model writes for them of its own accord, which our engine finds out once."""
    tokenizer = PromptTokenizer.load(model_folder)
    if name == SYNTHETIC:
        return first_share(synthetic_mix(tokenizer.vocab_size), arguments.share)
    kept = arguments.output.parent / f"{name}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as folder:
            natural_lengths(real_rows(name, tokenizer), model_folder, Path(folder)).save(kept.parent)
    return first_share(Workload.load(kept), arguments.share)


def first_share(workload: Workload, share: float) -> Workload:
    return workload.first(max(1, round(share * len(workload.prompts))))


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


def compare(
    workload: Workload,
    peers: dict[str, Peer],
    arguments: argparse.Namespace,
    model_folder: Path,
    folder: Path,
    rates: MachineRates,
) -> Row:
    """All turns of one workload: the fast peers' on all rows, then each slow one's on the first."""
    fast = {name: peer for name, peer in peers.items() if name not in SLOW}
    comparisons = [(workload, take_turns(workload, fast, arguments.rounds, model_folder, folder))]
    for name in SLOW.keys() & peers.keys():
        part = workload.first(SLOW[name])
        comparisons.append((part, take_turns(part, {name: peers[name]}, 1, model_folder, folder)))
    account = account_of(
        run_ours(workload, model_folder, folder / "profiled", profile=True),
        ModelSpec.from_config(model_folder, dtype="bfloat16"),
        os.cpu_count() or 1,
    )
    return summary_of(comparisons, least_work(workload, model_folder, rates), rates) | {"ours": account}


def take_turns(workload: Workload, peers: dict[str, Peer], num_rounds: int, model_folder: Path, folder: Path) -> Turns:
    """Ours, then each peer, round after round."""
    turns: Turns = {name: [] for name in (OURS, *peers)}
    for _ in range(num_rounds):
        turns[OURS].append(run_ours(workload, model_folder, folder / "ours").turn)
        for name, peer in peers.items():
            turns[name].append(peer.run(workload.save(folder)))
    return turns


def keep(output: Path, summary: Row) -> None:
    """Put one workload's figures into the file, in place of earlier ones of the same workload."""
    others = [kept for kept in read_summaries(output) if kept["workload"] != summary["workload"]]
    results = {"machine": platform.platform(), "cpu": cpu_model(), "workloads": [*others, summary]}
    output.write_text(json.dumps(results, indent=2), encoding="utf-8")


def read_summaries(output: Path) -> list[Row]:
    return json.loads(output.read_text(encoding="utf-8"))["workloads"] if output.exists() else []


if __name__ == "__main__":
    main()
