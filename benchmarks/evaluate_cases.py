"""What the evaluation runs: one case per simulation, in groups that become sections of the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from blendserve_core.sim.mix import PAPER_TRACES, MixTarget

TRACES = Path(__file__).parents[1] / "../shared/data/traces"
BASELINES = (("sequential", "depth-first"), ("overlapped", "depth-first"), ("overlapped", "random"))
# The best of 256 to 8192 tokens for each baseline (group "chunk"); the density-aware policies choose by themselves.
STEP_TOKENS = {"depth-first": 8192, "random": 512, "first-come": 2048, "blend-paper": 2048, "blend": 2048}
OTHER_MODELS = ("llama-3-70b", "llama-2-7b", "qwen-2.5-7b", "qwen-2.5-72b", "deepseek-67b")
OTHER_COMPUTE = {"WildChat-like": "wildchat", "Azure": "azure_conv_2023.parquet", "ShareGPT": "sharegpt.parquet"}


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation. ``label`` names its column in the report; ``mean_output`` is the long-output trace's mean length."""

    group: str
    label: str
    density: float
    sharing: float
    num_requests: int
    policy: str
    engine: str = "overlapped"
    interference: float = 0.15
    lengths: str = "sampled"
    model: str = "llama-3-8b"
    num_shards: int = 1
    seed: int = 0
    max_step_tokens: int = 2048
    compute_heavy: str = "burst"
    mean_output: int = 16384
    keep_steps: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """Requests per case, seeds of the main table, and mean length of the long outputs.

    With few requests, a few very long outputs would be all of the run; there they are more and shorter.
    """

    main: int = 200_000
    paper: int = 60_000
    small: int = 20_000
    seeds: tuple[int, ...] = (0,)
    main_output: int = 16384
    other_output: int = 4096

    def scaled(self, share: float) -> Sizes:
        """The same with fewer requests and shorter outputs, to try the script."""
        main, paper, small = (int(value * share) for value in (self.main, self.paper, self.small))
        main_output, other_output = (max(1024, int(value * share)) for value in (self.main_output, self.other_output))
        return Sizes(main, paper, small, self.seeds, main_output, other_output)


FULL = Sizes(400_000, 400_000, 400_000, seeds=(0, 1, 2), other_output=16384)


def all_cases(sizes: Sizes) -> list[Case]:
    """Every case, the long ones first so that two processes end together."""
    cases = [*main_cases(sizes), *paper_cases(sizes), *shard_cases(sizes), *model_cases(sizes), *mix_cases(sizes)]
    return [*cases, *grid_cases(sizes), *chunk_cases(sizes)]


def main_cases(sizes: Sizes) -> Iterator[Case]:
    """Policies and engines on the paper's traces at the interference of a good overlap."""
    for trace, target in PAPER_TRACES.items():
        common = _common("main", f"#{trace}", target, sizes.main, sizes.main_output)
        for engine, policy in BASELINES:
            yield _case(common, policy, engine=engine, keep_steps=trace == 1)
        for seed in sizes.seeds:
            yield _case(common, "blend", seed=seed, keep_steps=True)
        yield _case(common, "blend-paper")
        yield _case(common, "blend", lengths="true", keep_steps=True)


def paper_cases(sizes: Sizes) -> Iterator[Case]:
    """The interference that the paper's figures show: the check that the simulator is honest."""
    for trace, target in PAPER_TRACES.items():
        common = _common("paper", f"#{trace}", target, sizes.paper, sizes.other_output)
        for policy in ("depth-first", "random", "blend-paper", "blend"):
            yield _case(common, policy, interference=0.35)
        yield _case(common, "blend-paper", interference=0.35, lengths="true")


def shard_cases(sizes: Sizes) -> Iterator[Case]:
    common = _common("shards", "#3", PAPER_TRACES[3], sizes.main // 2, sizes.other_output)
    for num_shards in (1, 2, 4, 8):
        yield _case(common, "blend", num_shards=num_shards)


def model_cases(sizes: Sizes) -> Iterator[Case]:
    for model, policy in product(OTHER_MODELS, ("depth-first", "blend-paper", "blend")):
        yield _case(_common("models", model, PAPER_TRACES[1], sizes.small, sizes.other_output), policy, model=model)


def mix_cases(sizes: Sizes) -> Iterator[Case]:
    """Another compute-heavy trace instead of the BurstGPT-like one, where its file is there."""
    for (label, source), policy in product(OTHER_COMPUTE.items(), ("depth-first", "blend-paper", "blend")):
        path = TRACES / source
        if source.endswith(".parquet") and not path.exists():
            continue
        name = str(path) if source.endswith(".parquet") else source
        common = _common("mixes", label, MixTarget(1.1, 0.25), sizes.small, sizes.other_output)
        yield _case(common, policy, compute_heavy=name)


def grid_cases(sizes: Sizes) -> Iterator[Case]:
    """The paper's 65 mixes."""
    for step, tenth, policy in product(range(13), range(5), ("depth-first", "blend")):
        target = MixTarget(0.80 + 0.05 * step, 0.05 + 0.10 * tenth)
        yield _case(_common("grid", "grid", target, sizes.small, sizes.other_output), policy)


def chunk_cases(sizes: Sizes) -> Iterator[Case]:
    """Which chunk size is best for the baselines."""
    for trace, policy, tokens in product((1, 4), ("depth-first", "random"), (256, 512, 2048, 8192)):
        common = _common("chunk", f"#{trace}", PAPER_TRACES[trace], sizes.small, sizes.other_output)
        yield replace(_case(common, policy), max_step_tokens=tokens)


def _common(group: str, label: str, target: MixTarget, num_requests: int, mean_output: int) -> Case:
    """What the cases of one row of a table share."""
    density, sharing = round(target.density, 2), round(target.sharing, 2)
    return Case(group, label, density, sharing, num_requests, policy="blend", mean_output=mean_output)


def _case(common: Case, policy: str, **settings: Any) -> Case:
    return replace(common, policy=policy, max_step_tokens=STEP_TOKENS[policy], **settings)
