import os

from blendserve_core.kv.compiled import drop_stale_code


def test_compiled_code_older_than_a_source_it_may_call_is_dropped(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "__pycache__").mkdir(parents=True)
    old, new = first / "__pycache__" / "old.nbi", second / "__pycache__" / "new.nbi"
    for path, modified in ((old, 10), (first / "a.py", 5), (second / "b.py", 20), (new, 30)):
        path.touch()
        os.utime(path, (modified, modified))
    drop_stale_code([first, second])
    assert not old.exists()
    assert new.exists()
