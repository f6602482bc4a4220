"""Files of JSON are read, or refused in a line that names the file and the fault."""

import pytest

from drafttree.errors import InputError
from drafttree.loading.json_file import read_json_file


def test_a_file_is_read(tmp_path):
    path = tmp_path / "found.json"
    path.write_text('{"a": [1, "é"]}', encoding="utf-8")
    assert read_json_file(path) == read_json_file(str(path)) == {"a": [1, "é"]}


@pytest.mark.parametrize(
    ("content", "fault"),
    [("{", "not JSON"), ("", "not JSON"), ("[" * 100_000, "nested too deeply"), ("\xff", "not UTF-8 text (byte 0)")],
)
def test_what_is_no_json_is_refused_by_the_name_of_its_file(content, fault, tmp_path):
    path = tmp_path / "found.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError) as refused:
        read_json_file(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert fault in str(refused.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"found\.json: cannot be read"):
        read_json_file(tmp_path / "found.json")
