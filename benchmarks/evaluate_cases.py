"""What the evaluation runs: one case per simulation, in groups that become sections of the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from blendserve_core.sim.mix import PAPER_TRACES, MixTarget
from blendserve_core.sim.simulate import LARGEST_STEP_TOKENS

TRACES = Path(__file__).parents[1] / "../shared/data/traces"
GOOD_OVERLAP, PAPER_OVERLAP = 0.15, 0.35
"""Interference of a good engine, and the one with which the cost model reproduces the paper's engine."""

SEARCHED = 0
"""Stands for the chunk size that the group "chunk" finds best for this policy and engine."""
CHUNK_SIZES = (512, 2048, 8192)
BLEND_STEP_TOKENS = 8192

BASELINES = (("overlapped", "depth-first"), ("sequential", "depth-first"))
PLANNED = ("blend-paper", "blend")
OTHER_MODELS = ("llama-3-70b", "llama-2-7b", "qwen-2.5-7b", "qwen-2.5-72b", "deepseek-67b")
# The code trace is the one of Azure's two whose lengths and density are near the paper's (2508 in, 23 out, density 33).
OTHER_COMPUTE = {"Azure": "azure_code_2023.parquet", "ShareGPT": "sharegpt.parquet", "WildChat-like": "wildchat"}


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation. ``label`` names its row in the report; ``mean_output`` is the long-output trace's mean length."""

    group: str
    label: str
    density: float
    sharing: float
    num_requests: int
    policy: str
    engine: str = "overlapped"
    interference: float = GOOD_OVERLAP
    lengths: str = "sampled"
    model: str = "llama-3-8b"
    num_shards: int = 1
    seed: int = 0
    max_step_tokens: int = SEARCHED
    compute_heavy: str = "burst"
    mean_output: int = 16384
    keep_steps: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """Requests per case, seeds of the main table, and the mean length of the long outputs.

    With few requests, one very long output would be all of the run; there they are more and shorter. A large model is not
    memory-bound by outputs as short as a small model's.
    """

    main: int = 200_000
    paper: int = 200_000
    models: int = 40_000
    small: int = 20_000
    grid: int = 10_000
    seeds: tuple[int, ...] = (0, 1, 2)
    true_seeds: tuple[int, ...] = (0,)
    small_output: int = 2048
    grid_output: int = 1024
    models_output: int = 4096
    main_output: int = 16384
    grid_policies: tuple[str, ...] = ("depth-first", "blend")
    ranks: tuple[tuple[int, int], ...] = tuple((trace, num) for num in (4, 2, 8) for trace in (1, 2, 3, 4))

    def scaled(self, share: float) -> Sizes:
        """The same with fewer requests and shorter outputs, to try the script. Still shorter ones would not be memory-heavy."""
        counts = {name: max(1000, int(getattr(self, name) * share)) for name in ("main", "paper", "models", "small", "grid")}
        names = ("small_output", "grid_output", "models_output")
        outputs = dict.fromkeys(names, 4096) | {"main_output": max(2048, int(self.main_output * share))}
        return replace(self, **counts, **outputs)


FULL = Sizes(
    main=400_000,
    paper=400_000,
    models=400_000,
    small=400_000,
    grid=400_000,
    true_seeds=(0, 1, 2),
    small_output=16384,
    grid_output=16384,
    models_output=16384,
    grid_policies=("depth-first", *PLANNED),
)


def all_cases(sizes: Sizes) -> list[Case]:
    """Every case but the chunk search, by importance: a run that is cut short has the must-reach table first."""
    first, *others = sizes.seeds
    cases = [
        *main_cases(sizes, [first]),
        *paper_cases(sizes, ("depth-first", "blend-paper")),
        *main_cases(sizes, others),
        *more_main_cases(sizes),
        *paper_cases(sizes, ("blend-paper",), lengths="true"),
        *shard_cases(sizes),
        *mix_cases(sizes),
        *model_cases(sizes),
        *paper_cases(sizes, ("random", "blend")),
        *grid_cases(sizes),
    ]
    return list(dict.fromkeys(cases))


def chunk_cases(sizes: Sizes) -> Iterator[Case]:
    """Which chunk size is best for what does not choose the prompt tokens of a step by itself."""
    kinds = (*BASELINES, ("overlapped", "random"), ("overlapped", "blend-paper"))
    for trace, (engine, policy), tokens in product(PAPER_TRACES, kinds, CHUNK_SIZES):
        common = _common("chunk", f"#{trace}", PAPER_TRACES[trace], sizes.small, sizes.small_output)
        yield replace(_case(common, policy, engine=engine), max_step_tokens=tokens)


def main_cases(sizes: Sizes, seeds: Iterable[int]) -> Iterator[Case]:
    """The must-reach table: blend and the depth-first baselines on the paper's traces, with a good overlap."""
    for seed, (trace, target) in product(seeds, PAPER_TRACES.items()):
        common = replace(_common("main", f"#{trace}", target, sizes.main, sizes.main_output), seed=seed)
        yield _case(common, "blend", keep_steps=True)
        for engine, policy in BASELINES:
            yield _case(common, policy, engine=engine, keep_steps=trace == 1)
        if seed in sizes.true_seeds:
            yield _case(common, "blend", lengths="true", keep_steps=True)


def more_main_cases(sizes: Sizes) -> Iterator[Case]:
    """The other policies beside them, of the first seed."""
    for (trace, target), policy in product(PAPER_TRACES.items(), ("random", "blend-paper")):
        common = _common("main", f"#{trace}", target, sizes.main, sizes.main_output)
        yield _case(replace(common, seed=sizes.seeds[0]), policy, keep_steps=policy == "blend-paper")


def paper_cases(sizes: Sizes, policies: tuple[str, ...], lengths: str = "sampled") -> Iterator[Case]:
    """The interference that the paper's figures show: the check that the simulator is honest."""
    for (trace, target), policy in product(PAPER_TRACES.items(), policies):
        common = _common("paper", f"#{trace}", target, sizes.paper, sizes.main_output)
        yield _case(common, policy, interference=PAPER_OVERLAP, lengths=lengths, keep_steps=True)


def shard_cases(sizes: Sizes) -> Iterator[Case]:
    """Several ranks, and four that know all lengths beforehand; one rank is a case of the main table."""
    for lengths, (trace, num_shards) in product(("sampled", "true"), sizes.ranks):
        if lengths == "sampled" or num_shards == 4:
            common = _common("shards", f"#{trace}", PAPER_TRACES[trace], sizes.main, sizes.main_output)
            yield _case(common, "blend", num_shards=num_shards, lengths=lengths)


def model_cases(sizes: Sizes) -> Iterator[Case]:
    for model, policy in product(OTHER_MODELS, ("depth-first", *PLANNED)):
        common = _common("models", model, PAPER_TRACES[1], sizes.models, sizes.models_output)
        yield _case(common, policy, model=model, interference=PAPER_OVERLAP)


def mix_cases(sizes: Sizes) -> Iterator[Case]:
    """Another compute-heavy trace instead of the BurstGPT-like one, where its file is there."""
    for (label, source), policy in product(OTHER_COMPUTE.items(), ("depth-first", *PLANNED)):
        path = TRACES / source
        if source.endswith(".parquet") and not path.exists():
            continue
        name = str(path) if source.endswith(".parquet") else source
        common = _common("mixes", label, MixTarget(1.1, 0.25), sizes.small, sizes.small_output)
        yield _case(common, policy, compute_heavy=name, interference=PAPER_OVERLAP)


def grid_cases(sizes: Sizes) -> Iterator[Case]:
    """The paper's 65 mixes, every fourth density first, so that a run that is cut short has a coarse grid."""
    steps = sorted(range(13), key=lambda step: (step % 4 != 0, step % 2 != 0, step))
    for step, tenth, policy in product(steps, range(5), sizes.grid_policies):
        target = MixTarget(0.80 + 0.05 * step, 0.05 + 0.10 * tenth)
        common = _common("grid", "grid", target, sizes.grid, sizes.grid_output)
        yield _case(common, policy, interference=PAPER_OVERLAP)


def steps_key(case: Case) -> Case:
    """Cases with equal keys take the same steps: all but blend plan and admit without regard to how long a step takes.

    With several devices the engine decides what an all-reduce takes, and with several ranks the clock who takes what over.
    """
    if case.policy == "blend" or case.num_shards > 1 or case.model != "llama-3-8b":
        return case
    return replace(case, group="", label="", engine="overlapped", interference=GOOD_OVERLAP, keep_steps=True)


def with_best_chunk(case: Case, best: dict[tuple[str, str, str], int]) -> Case:
    """The case at the chunk size found for (trace, engine, policy); cases of other mixes take that of trace #1."""
    if case.max_step_tokens != SEARCHED:
        return case
    key = (case.label, case.engine, case.policy)
    return replace(case, max_step_tokens=best.get(key, best[("#1", *key[1:])]))


def _common(group: str, label: str, target: MixTarget, num_requests: int, mean_output: int) -> Case:
    """What the cases of one row of a table share."""
    density, sharing = round(target.density, 2), round(target.sharing, 2)
    return Case(group, label, density, sharing, num_requests, policy="blend", mean_output=mean_output)


def _case(common: Case, policy: str, **settings: Any) -> Case:
    max_step_tokens = LARGEST_STEP_TOKENS if policy == "blend" else SEARCHED
    return replace(common, policy=policy, max_step_tokens=max_step_tokens, **settings)
