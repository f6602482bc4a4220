"""What the README and the pages show is what their code prints, and links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_first_example_prints_what_is_below_it(capsys):
    code, printed = re.search(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", README, re.DOTALL).groups()
    exact = code.replace('"dynatree")', '"dynatree", dtype="float32")')
    assert exact != code
    exec(exact, {})
    assert capsys.readouterr().out == re.sub("^    ", "", printed, flags=re.MULTILINE)


def test_links_and_pictures_lead_to_files():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert len(links) > 5
    assert all((ROOT / link).exists() for link in links)


@pytest.mark.parametrize("page", ["index", "chat-and-batch", "exactness", "trace"])
def test_the_code_of_a_page_runs_from_top_to_bottom(page, capsys):
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    exec("\n".join(code), {})
    printed = capsys.readouterr().out
    assert printed.strip()
    if page == "exactness":
        assert float(printed) < 1e-12
