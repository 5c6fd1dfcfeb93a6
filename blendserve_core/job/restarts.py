"""An engine that dies is started again, and the row that kills it is found: the shard goes on, and others never notice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from blendserve_core.job.attempts import remember_attempt
from blendserve_core.shard.supervise import EngineDied, EngineError, run_engine
from blendserve_core.shard.suspects import EVIDENCE_OF_A_CRASH, EVIDENCE_OF_A_KILL, Suspects
from schemas.manifest import EngineManifest, Progress
from schemas.shard import EngineSpec

logger = logging.getLogger(__name__)

# Halving what 256 sequences ran takes 8 deaths until one is alone; a few neighbours of the same kind take a few more.
MAX_FRUITLESS_DEATHS = 32
MAX_DEATHS_BEFORE_ANY_ROW = 3


def run_to_the_end(spec: EngineSpec, on_progress: Callable[[Progress], None] | None = None) -> EngineManifest:
    """Run engines one after another until the shard's work is done or one was told to stop; returns what the last one did.

    Rows that ran when an engine died run again in halves, and one whose engine dies twice while it runs alone becomes an error
    row. Of engines that somebody kills it takes more, lest rows pay for what an operator did. Raises EngineError when no engine
    gets anywhere, and what else :func:`run_engine` raises.
    """
    suspects = Suspects(spec)
    num_deaths_before_any_row = 0
    while True:
        group = suspects.next_group()
        remember_attempt(Path(spec.output_folder))
        try:
            manifest = run_engine(spec.model_copy(update={"suspects": group}), on_progress)
        except EngineDied as death:
            in_flight = suspects.take_in_death(EVIDENCE_OF_A_KILL if death.is_killed else EVIDENCE_OF_A_CRASH)
            num_deaths_before_any_row = 0 if in_flight else num_deaths_before_any_row + 1
            _give_up_if_hopeless(death, suspects, num_deaths_before_any_row)
            logger.warning("%d rows ran when this happened, and run again: %s", len(in_flight), death)
        else:
            if group is None or manifest.interrupted:
                return manifest


def _give_up_if_hopeless(death: EngineDied, suspects: Suspects, num_deaths_before_any_row: int) -> None:
    """Raise EngineError where another engine would do no better."""
    ended_by_itself = death.status > 0
    if num_deaths_before_any_row >= (1 if ended_by_itself else MAX_DEATHS_BEFORE_ANY_ROW):
        raise death
    if suspects.num_fruitless >= MAX_FRUITLESS_DEATHS:
        suspects.acquit()
        raise EngineError(f"{MAX_FRUITLESS_DEATHS} engines in a row died without finishing a row; of the last one: {death}")
