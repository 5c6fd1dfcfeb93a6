"""Building the native kernels: once per source, and with a message where that is impossible."""

from __future__ import annotations

from pathlib import Path

import pytest

from blendserve_core.engine.cpu.native import library
from blendserve_core.engine.cpu.native.__main__ import main
from blendserve_core.engine.cpu.native.library import NativeUnavailableError, build_library, load_library


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native-cache")


@pytest.fixture(scope="module")
def built(cache_folder: Path) -> Path:
    try:
        return build_library(cache_folder)
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def test_a_build_is_kept_and_leaves_nothing_else_behind(built: Path, cache_folder: Path, monkeypatch) -> None:
    assert [path.name for path in cache_folder.iterdir()] == [built.name]
    monkeypatch.setenv("CXX", "/bin/false")  # a second compilation would fail
    assert build_library(cache_folder) == built
    assert load_library(cache_folder).blend_best_isa() >= 0


def test_other_flags_get_a_build_of_their_own(built: Path, cache_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(library, "COMPILE_FLAGS", (*library.COMPILE_FLAGS, "-DOTHER"))
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(NativeUnavailableError):
        build_library(cache_folder)


def test_without_a_compiler_the_message_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeUnavailableError, match=r"install g\+\+"):
        load_library(tmp_path)


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho no such flag >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NativeUnavailableError, match="no such flag"):
        load_library(tmp_path / "cache")


def test_a_broken_library_is_reported(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(library, "build_library", lambda folder: tmp_path / "missing.so")
    with pytest.raises(NativeUnavailableError, match="cannot load the native kernels"):
        load_library(tmp_path)


def test_an_installation_builds_them_where_engines_look_for_them(built: Path, monkeypatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    main()
    [kept] = (tmp_path / "blendserve" / "native").iterdir()
    assert kept.name == built.name
    assert str(kept) in capsys.readouterr().out


def test_an_installation_without_a_compiler_goes_on_and_says_what_is_lost(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    main()
    assert "several times slower: no C++ compiler: install g++" in capsys.readouterr().err
