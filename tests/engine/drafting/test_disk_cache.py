import pytest

from drafttree.engine.drafting.disk_cache import read_cached, write_cached


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("drafttree.engine.drafting.disk_cache.user_cache_path", lambda name: tmp_path / name)
    return tmp_path / "drafttree" / "costs"


@pytest.mark.usefixtures("folder")
def test_a_value_is_kept_by_its_key():
    assert read_cached("a/b c") is None
    write_cached("a/b c", {"seconds": [1.5]})
    assert read_cached("a/b c") == {"seconds": [1.5]}
    assert read_cached("a/b") is None


@pytest.mark.parametrize(
    "broken", [b"", b"{", b"[1]", b'{"key": "a", "value": 3}', b'{"key": "b", "value": {}}', b"\xff"]
)
def test_a_broken_file_counts_as_none(folder, broken):
    write_cached("a", {"x": 1})
    (file,) = folder.iterdir()
    file.write_bytes(broken)
    assert read_cached("a") is None
    write_cached("a", {"x": 2})
    assert read_cached("a") == {"x": 2}


def test_a_folder_that_cannot_be_written_is_no_error(folder):
    folder.parent.mkdir()
    folder.write_text("a file in its place")
    write_cached("a", {"x": 1})
    assert read_cached("a") is None
