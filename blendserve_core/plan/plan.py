"""The plan: in what order requests may enter, per data-parallel shard. Saved as plain arrays and loaded again bit for bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from blendserve_core.data.durable import save_arrays, written_whole
from blendserve_core.plan.tree import PrefixTree

ARRAYS_FILE = "plan.npz"
SUMMARY_FILE = "plan.json"

FIXED = 0
"""The package of what stays with its shard."""


@dataclass(frozen=True, slots=True)
class LengthEstimates:
    """Output-length estimates, one entry per request: what the planner believes, never the truth.

    mean_tokens    [R] float32 expected output tokens
    second_moment  [R] float32 E[d^2]; decode time goes with it, not with the square of the mean
    group          [R] int32 requests with the same group share one length distribution
    bin_tokens     [G, B] float32 mean length in each probability bin of a group, increasing and not yet capped by max_tokens
    bin_probability [B] float32 probability of each bin
    is_guess       [G] bool groups in which most outputs were not seen to end: their longer lengths are a guess
    """

    mean_tokens: NDArray[np.float32]
    second_moment: NDArray[np.float32]
    group: NDArray[np.int32]
    bin_tokens: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    bin_probability: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    is_guess: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))


@dataclass(frozen=True, slots=True)
class Shard:
    """One data-parallel rank's part of the plan, the order in which its requests may enter.

    order        [K] int64 request indices
    unit_indptr  [U + 1] int64 CSR over ``order``: schedulable units. Requests that share a long prefix stay in one; a whole
                 unit may move to another shard at little cost
    package      [U] int32 what may move together, numbered from 1 (:mod:`blendserve_core.plan.packages`); 0 stays
    num_early_packages  the first so many packages decode long and should start early
    tc_s, tm_s   predicted compute and memory seconds;  predicted_s  predicted seconds on the engine
    """

    rank: int
    order: NDArray[np.int64]
    unit_indptr: NDArray[np.int64]
    package: NDArray[np.int32]
    tc_s: float
    tm_s: float
    predicted_s: float
    num_early_packages: int = 0

    @property
    def num_requests(self) -> int:
        return len(self.order)

    @property
    def num_packages(self) -> int:
        """Packages that may move, numbered from 1."""
        return int(self.package.max(initial=0))

    def in_packages(self, packages: Collection[int]) -> NDArray[np.int64]:
        """The requests of some packages (0: what is fixed), in the shard's order."""
        is_wanted = np.isin(self.package, list(packages))
        return self.order[np.repeat(is_wanted, np.diff(self.unit_indptr))]


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What a person wants to know before a GPU is taken. Ratios are shares of the prompt tokens; times are predictions.

    ``sharing_ratio`` is what the chosen order keeps, ``max_sharing_ratio`` what a perfect depth-first order could.
    ``partition`` names how the shards were cut, ``hardware`` whose rates the times take. ``density_histogram`` has (lower edge,
    requests) of each factor of two.
    """

    policy: str
    num_requests: int
    num_tokens: int
    unique_tokens: int
    num_prompt_tokens: int
    est_output_tokens: int
    sharing_ratio: float
    max_sharing_ratio: float
    density: float
    predicted_s: float
    optimum_s: float
    tree_s: float
    plan_s: float
    partition: str = "whole"
    hardware: str = ""
    density_histogram: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the generate stage needs: the tree (the cache index), the estimates, and one shard per rank."""

    tree: PrefixTree
    estimates: LengthEstimates
    shards: tuple[Shard, ...]
    summary: PlanSummary

    def save(self, folder: Path) -> None:
        """Write the plan; its summary comes last and says that the rest is whole."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"tree.{f.name}": getattr(self.tree, f.name) for f in fields(self.tree)}
        arrays |= {f"estimates.{f.name}": getattr(self.estimates, f.name) for f in fields(self.estimates)}
        for shard in self.shards:
            arrays[f"shard.{shard.rank}.order"] = shard.order
            arrays[f"shard.{shard.rank}.unit_indptr"] = shard.unit_indptr
            arrays[f"shard.{shard.rank}.package"] = shard.package
        save_arrays(folder / ARRAYS_FILE, **arrays)
        with written_whole(folder / SUMMARY_FILE) as path:
            path.write_text(json.dumps(self.as_dict(), indent=2), encoding="utf-8")

    def digest(self) -> str:
        """Hex digest of what goes where and in what order; two plans that have it in common do the same."""
        digest = hashlib.blake2b(digest_size=16)
        for shard in self.shards:
            for array in (shard.order, shard.unit_indptr, shard.package):
                digest.update(f"{len(array)}:".encode() + array.tobytes())
        return digest.hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """The plan without its arrays, as ``blendserve plan --json`` prints it."""
        shards = [
            {"rank": s.rank, "num_requests": s.num_requests, "num_early_packages": s.num_early_packages}
            | {"tc_s": s.tc_s, "tm_s": s.tm_s, "predicted_s": s.predicted_s}
            for s in self.shards
        ]
        return asdict(self.summary) | {"shards": shards}

    @classmethod
    def load_if_whole(cls, folder: Path) -> Plan | None:
        """None where there is no plan, or not all of one."""
        try:
            return cls.load(folder)
        except (FileNotFoundError, EOFError, ValueError, KeyError, BadZipFile):
            return None

    @classmethod
    def load(cls, folder: Path) -> Plan:
        summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
        summary["density_histogram"] = tuple((edge, count) for edge, count in summary["density_histogram"])
        with np.load(folder / ARRAYS_FILE) as arrays:
            tree = PrefixTree(**{f.name: arrays[f"tree.{f.name}"] for f in fields(PrefixTree)})
            estimates = LengthEstimates(**{f.name: arrays[f"estimates.{f.name}"] for f in fields(LengthEstimates)})
            shards = tuple(
                Shard(
                    rank=s["rank"],
                    order=arrays[f"shard.{s['rank']}.order"],
                    unit_indptr=arrays[f"shard.{s['rank']}.unit_indptr"],
                    package=arrays[f"shard.{s['rank']}.package"],
                    tc_s=s["tc_s"],
                    tm_s=s["tm_s"],
                    predicted_s=s["predicted_s"],
                    num_early_packages=s["num_early_packages"],
                )
                for s in summary.pop("shards")
            )
        return cls(tree=tree, estimates=estimates, shards=shards, summary=PlanSummary(**summary))
