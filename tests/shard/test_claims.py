"""Packages that may move have one owner each, whoever crashes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from blendserve_core.plan.claim_rule import Package
from blendserve_core.plan.plan import FIXED
from blendserve_core.shard.claims import Claims, drop_damaged_claims


def plan_of(*num_packages: int, num_early: int = 0):
    shards = [SimpleNamespace(rank=i, num_packages=n, num_early_packages=num_early) for i, n in enumerate(num_packages)]
    return SimpleNamespace(shards=shards)


def claim_all(claims: Claims, *, is_early: bool = False) -> list[Package]:
    claimed = []
    while (package := claims.claim_next(is_early=is_early)) is not None:
        claimed.append(package)
    return claimed


def test_a_shard_takes_its_own_packages_first_and_in_order(tmp_path: Path) -> None:
    assert claim_all(Claims(tmp_path, plan_of(2, 0), 0)) == [Package(0, 1), Package(0, 2)]


def test_an_idle_shard_takes_the_last_packages_of_the_busiest(tmp_path: Path) -> None:
    plan = plan_of(0, 2, 3)
    assert claim_all(Claims(tmp_path, plan, 0)) == [Package(2, 3), Package(2, 2), Package(1, 2), Package(2, 1), Package(1, 1)]


def test_what_one_shard_claimed_no_other_gets(tmp_path: Path) -> None:
    plan = plan_of(3, 0)
    owner, thief = Claims(tmp_path, plan, 0), Claims(tmp_path, plan, 1)
    assert owner.claim_next(is_early=False) == Package(0, 1)
    assert thief.claim_next(is_early=False) == Package(0, 3)
    assert owner.claim_next(is_early=False) == Package(0, 2)
    assert owner.claim_next(is_early=False) is thief.claim_next(is_early=False) is None


def test_of_early_packages_the_first_are_taken_first_by_all(tmp_path: Path) -> None:
    plan = plan_of(4, 2, num_early=2)
    assert claim_all(Claims(tmp_path, plan, 1), is_early=True) == [Package(1, 1), Package(1, 2), Package(0, 1), Package(0, 2)]
    assert claim_all(Claims(tmp_path, plan, 1)) == [Package(0, 4), Package(0, 3)]


def test_a_restarted_shard_finds_what_it_claimed(tmp_path: Path) -> None:
    plan = plan_of(1, 1)
    claim_all(Claims(tmp_path, plan, 1))
    assert Claims(tmp_path, plan, 1).held() == [Package(1, FIXED), Package(0, 1), Package(1, 1)]
    assert Claims(tmp_path, plan, 0).held() == [Package(0, FIXED)]


def test_claims_made_at_once_never_collide(tmp_path: Path) -> None:
    plan = plan_of(*[8] * 4)
    with ThreadPoolExecutor(4) as threads:
        claimed = list(threads.map(lambda rank: claim_all(Claims(tmp_path, plan, rank)), range(4)))
    packages = [package for one in claimed for package in one]
    assert len(packages) == len(set(packages)) == 32


def test_a_draft_left_by_a_crash_is_no_claim(tmp_path: Path) -> None:
    plan = plan_of(1)
    (tmp_path / ".claim-of-00000").write_text("")
    assert claim_all(Claims(tmp_path, plan, 0)) == [Package(0, 1)]


def test_a_claim_that_lost_its_owner_in_a_crash_is_free_again(tmp_path: Path) -> None:
    claims = Claims(tmp_path, plan_of(2), 0)
    claim_all(claims)
    (tmp_path / "shard-00000-package-00002").write_text("")
    drop_damaged_claims(tmp_path)
    assert claim_all(claims) == [Package(0, 2)]
