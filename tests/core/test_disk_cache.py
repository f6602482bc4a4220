import pytest

from drafttree.core.disk_cache import DiskCache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("drafttree.core.disk_cache.user_cache_path", lambda name: tmp_path / name)
    return DiskCache("costs")


def test_a_value_is_kept_by_its_key(cache):
    assert cache.get("a/b c") is None
    cache.put("a/b c", {"seconds": [1.5]})
    assert cache.get("a/b c") == {"seconds": [1.5]}
    assert DiskCache("dtype").get("a/b c") is None


@pytest.mark.parametrize(
    "broken", [b"", b"{", b"[1]", b'{"key": "a", "value": 3}', b'{"key": "b", "value": {}}', b"\xff"]
)
def test_a_broken_file_counts_as_none(cache, broken):
    cache.put("a", {"x": 1})
    (file,) = cache.folder.iterdir()
    file.write_bytes(broken)
    assert cache.get("a") is None
    cache.put("a", {"x": 2})
    assert cache.get("a") == {"x": 2}


def test_a_folder_that_cannot_be_written_is_no_error(cache):
    cache.folder.parent.mkdir()
    cache.folder.write_text("a file in its place")
    cache.put("a", {"x": 1})
    assert cache.get("a") is None
