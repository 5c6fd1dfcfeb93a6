"""What the README tells a reader to type, on the tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.cli import call

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the README's first dataset has been made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    exec(_only(r"python - <<'EOF'\n(.*?)EOF"))
    return tmp_path


def _only(pattern: str) -> str:
    found = re.findall(pattern, README, flags=re.DOTALL)
    assert len(found) == 1, pattern
    return found[0]


def test_the_first_dataset_can_be_planned(workdir: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = _only(r"\nblendserve (plan \S+)\n").split()
    assert call([*command, "--model", str(tiny_model_folder)]) == 0
    assert "requests        3" in capsys.readouterr().out


def test_the_first_dataset_can_be_run_as_the_notebook_part_says(workdir: Path, tiny_model_folder: Path) -> None:
    block = _only(r"```python\n(.*?)```")
    assert 'output="runs/notebook"' in block
    exec(block.replace('output="runs/notebook"', f'output="runs/notebook", model={str(tiny_model_folder)!r}'))
    published = pq.read_table(workdir / "runs" / "notebook" / "generations.parquet")
    assert published["topic"].to_pylist() == ["cs", "physics", "geography"]


def test_every_option_that_the_readme_names_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert [call([command, "--help"]) for command in ("run", "run-batch", "simulate")] == [0, 0, 0]
    offered = capsys.readouterr().out
    for option in set(re.findall(r"--[a-z][a-z-]+", README)) - {"--help", "--type", "--no-prompt", "--all", "--pool"}:
        assert option in offered, option
