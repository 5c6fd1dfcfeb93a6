"""Which requests may have killed an engine, on disk: halves of what ran when it died, until one that dies alone is found."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pydantic import Field

from blendserve_core.data.generation import Generation, to_table
from blendserve_core.data.parts import finished_keys, finished_requests, write_part
from blendserve_core.requests import RequestTable
from blendserve_core.shard.in_flight import forget_in_flight, read_in_flight
from schemas.manifest import JsonFile
from schemas.shard import EngineSpec

SUSPECTS_FILE = "suspects.json"

# A crash says more about the row that ran than a kill from outside. Two crashes are enough.
EVIDENCE_NEEDED = 6
EVIDENCE_OF_A_CRASH = 3
EVIDENCE_OF_A_KILL = 1
TWICE = "the engine died twice while this row ran"


class SuspectsState(JsonFile):
    """``groups`` run one by one; ``evidence`` by request is from when it ran alone.

    ``unseen`` ran when an engine died that nobody watched. ``num_fruitless`` deaths came since an engine last finished a row;
    the folder had ``num_rows`` then, and the parts ``blamed`` hold the error rows made since.
    """

    groups: list[list[int]] = Field(default_factory=list)
    evidence: dict[int, int] = Field(default_factory=dict)
    unseen: list[int] = Field(default_factory=list)
    num_fruitless: int = 0
    num_rows: int = 0
    blamed: list[str] = Field(default_factory=list)


class Suspects:
    """The suspects of one engine's folder. Its methods are for times when no engine runs there."""

    def __init__(self, spec: EngineSpec) -> None:
        self._folder = Path(spec.output_folder)
        self._spec = spec
        self._state = SuspectsState.read_if_whole(self._folder / SUSPECTS_FILE) or SuspectsState()

    @property
    def num_fruitless(self) -> int:
        """Deaths since an engine last finished a row."""
        return self._state.num_fruitless

    def next_group(self) -> list[int] | None:
        """Requests to run by themselves; None when there is no suspicion, and all may run."""
        self._take_in_unseen_death()
        groups = [self._open(group) for group in self._state.groups]
        self._save(groups=[group for group in groups if group])
        return self._state.groups[0] if self._state.groups else None

    def take_in_death(self, evidence: int = EVIDENCE_OF_A_CRASH) -> list[int]:
        """Part or blame what ran when an engine died just now, and return it."""
        in_flight = self._take_in_flight()
        self._count_death()
        self._suspect(in_flight, evidence)
        return in_flight

    def acquit(self) -> None:
        """Remove the error rows made since the last finished row: where every row kills the engine, none is to blame."""
        for name in self._state.blamed:
            (self._folder / name).unlink(missing_ok=True)
        self._state = SuspectsState()
        (self._folder / SUSPECTS_FILE).unlink(missing_ok=True)

    def _take_in_unseen_death(self) -> None:
        """Power cuts and kills of everything are no row's fault; but what ran at two of them in a row is suspect."""
        if in_flight := self._take_in_flight():
            self._suspect([request for request in in_flight if request in self._state.unseen], EVIDENCE_OF_A_KILL)
            self._save(unseen=in_flight)

    def _suspect(self, in_flight: list[int], evidence: int) -> None:
        if len(in_flight) == 1:
            self._add_evidence(in_flight[0], evidence)
        elif in_flight:
            middle = len(in_flight) // 2
            others = [[request for request in group if request not in in_flight] for group in self._state.groups]
            self._save(groups=[in_flight[:middle], in_flight[middle:], *others])

    def _add_evidence(self, request: int, evidence: int) -> None:
        total = self._state.evidence | {request: self._state.evidence.get(request, 0) + evidence}
        self._save(evidence=total)
        if total[request] >= EVIDENCE_NEEDED:
            part = write_part(self._folder, to_table([self._error_row(request)]))
            self._save(blamed=[*self._state.blamed, part.name], num_rows=self._state.num_rows + 1)
        elif [request] not in self._state.groups:
            self._save(groups=[[request], *self._state.groups])

    def _count_death(self) -> None:
        state, num_rows = self._state, len(finished_keys([self._folder])[0])
        if num_rows > state.num_rows:
            self._save(num_fruitless=1, num_rows=num_rows, blamed=[])
        else:
            self._save(num_fruitless=state.num_fruitless + 1)

    def _take_in_flight(self) -> list[int]:
        """What the last engine in the folder computed when it died, less what is finished all the same; its note is used up."""
        in_flight = self._open(read_in_flight(self._folder).tolist())
        forget_in_flight(self._folder)
        return in_flight

    def _open(self, requests: list[int]) -> list[int]:
        if not requests:
            return []
        is_open = ~finished_requests(self._requests, map(Path, self._spec.done_folders))
        return sorted(request for request in set(requests) if 0 <= request < len(is_open) and is_open[request])

    @cached_property
    def _requests(self) -> RequestTable:
        return RequestTable.load(Path(self._spec.staged_folder))

    def _error_row(self, request: int) -> Generation:
        table = self._requests
        return Generation(
            row=int(table.row[request]),
            sample_index=int(table.sample_index[request]),
            output_text=None,
            output_token_ids=None,
            finish_reason="error",
            num_prompt_tokens=int(table.num_prompt_tokens[request]),
            error={"type": "engine_died", "message": TWICE, "stage": "generate"},
        )

    def _save(self, **changes: object) -> None:
        changed = self._state.model_copy(update=changes)
        if changed != self._state:
            self._state = changed
            changed.write(self._folder / SUSPECTS_FILE)
