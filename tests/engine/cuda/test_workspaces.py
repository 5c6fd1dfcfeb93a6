"""How much scratch memory captured decodes are given."""

from __future__ import annotations

import pytest
from attention_case import attention_config
from flashinfer_stand_in import split_bytes

from blendserve_core.engine.cuda import workspaces
from blendserve_core.engine.cuda.workspaces import Workspaces, graph_workspace_bytes


@pytest.mark.parametrize("ratio", [1, 4, 7, 8, 32])
@pytest.mark.parametrize("num_kv_heads", [1, 4, 32])
@pytest.mark.parametrize("num_rows", [64, 1024, 2048])
def test_a_captured_plan_finds_room(ratio: int, num_kv_heads: int, num_rows: int) -> None:
    config = attention_config(ratio, 128, num_kv_heads)
    least = split_bytes(num_rows, config.num_heads, num_kv_heads, 128)
    assert least <= graph_workspace_bytes(config, num_rows) < 1.3 * least + 2**20


def test_a_model_with_as_many_kv_heads_as_heads_wants_more_than_what_is_usual() -> None:
    num_bytes = graph_workspace_bytes(attention_config(1, 128, 32), 1024)
    assert num_bytes > workspaces.WORKSPACE_BYTES
    assert len(Workspaces.allocate("cpu", num_bytes).decodes) == num_bytes


def test_nothing_captured_wants_no_more_than_what_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "WORKSPACE_BYTES", 100)
    allocated = Workspaces.allocate("cpu")
    assert len(allocated.chunks) == len(allocated.decodes) == 100
