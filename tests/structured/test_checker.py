"""Formats that are tried in a process of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blendserve_core.structured import checker
from blendserve_core.structured.checker import FormatChecker
from blendserve_core.structured.formats import ResponseFormat

FINE = ResponseFormat("regex", "[ab]+")
ENDLESS = ResponseFormat("json_schema", json.dumps({"enum": [f"value {i}" for i in range(60_000)]}))


def test_bad_formats_are_errors_of_their_rows_and_so_is_one_that_takes_for_ever(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checker, "COMPILE_LIMIT_S", 1)
    bad, unsupported = ResponseFormat("regex", "[a"), ResponseFormat("json_schema", '{"not": {}}')
    errors = {}
    with FormatChecker(tiny_model_folder) as formats:
        formats.check([FINE, bad, None, unsupported, bad, ENDLESS, ResponseFormat("regex", "after that")], errors)
        assert formats.problem(bad) is errors[1]
    assert {row: error.type for row, error in errors.items()} == {
        1: "invalid_response_format",
        3: "unsupported_response_format",
        4: "invalid_response_format",
        5: "unsupported_response_format",
    }
    assert errors[1].message == "response_format: regex: Regex parsing error at position 3: Unclosed '['"
    assert "takes more than 1 s" in errors[5].message


def test_no_process_is_started_for_rows_without_a_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "LineProcess", None)
    errors = {}
    with FormatChecker(Path("nowhere")) as formats:
        formats.check([None, None], errors)
    assert not errors
