"""A package that is missing, too old or too new is told with what needs it and the command that mends it."""

from importlib import metadata

import pytest

from drafttree.core import requirements
from drafttree.errors import ConfigError
from testing.command_line import complaint

DECLARED = [
    "torch>=2.11",
    "transformers>=5.17,<6",
    'tomli>=2; python_version < "3"',
    'drafttree[grammar]; extra == "serve"',
    'fastapi>=0.132; extra == "serve"',
    'llguidance<2,>=1.9; extra == "grammar"',
    'jinja2>=3.1; extra == "report"',
    'matplotlib>=3.9; extra == "report"',
]
INSTALLED = {
    "torch": "2.13.0+cpu",
    "transformers": "5.24.0",
    "fastapi": "0.140",
    "llguidance": "1.9.1",
    "jinja2": "3.2",
}


@pytest.fixture
def installed(monkeypatch):
    """The versions that are installed, by package, which a test may change."""
    versions = dict(INSTALLED)

    def version(package):
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(requirements, "requires", lambda _: DECLARED)
    monkeypatch.setattr(requirements, "version", version)
    requirements.check_requirements.cache_clear()
    yield versions
    requirements.check_requirements.cache_clear()


@pytest.mark.usefixtures("installed")
def test_what_is_installed_passes():
    requirements.check_requirements("drafttree")
    requirements.check_requirements("serving", "serve")
    requirements.check_requirements("a page", "report", ("jinja2",))


SERVE, GRAMMAR = ("serving", "serve"), ("a grammar", "grammar")
MESSAGES = [
    ("torch", "2.10.1", ("drafttree",), "drafttree needs torch>=2.11, but 2.10.1 is installed", "torch>=2.11"),
    ("torch", None, ("drafttree",), "drafttree needs torch, which is not installed", "torch>=2.11"),
    (
        *("transformers", "6.0.0rc1", ("drafttree",)),
        *("drafttree needs transformers<6,>=5.17, but 6.0.0rc1 is installed", "transformers<6,>=5.17"),
    ),
    ("fastapi", None, SERVE, "serving needs fastapi, which is not installed", "drafttree[serve]"),
    ("fastapi", "0.99", SERVE, "serving needs fastapi>=0.132, but 0.99 is installed", "fastapi>=0.132"),
    ("llguidance", None, SERVE, "serving needs llguidance, which is not installed", "drafttree[serve]"),
    ("llguidance", "2", GRAMMAR, "a grammar needs llguidance<2,>=1.9, but 2 is installed", "llguidance<2,>=1.9"),
    ("jinja2", None, ("a page", "report"), "a page needs jinja2, which is not installed", "drafttree[report]"),
]


@pytest.mark.parametrize(("package", "version", "arguments", "problem", "wanted"), MESSAGES)
def test_others_are_told(installed, package, version, arguments, problem, wanted):
    del installed[package]
    if version:
        installed[package] = version
    with pytest.raises(ConfigError) as raised:
        requirements.check_requirements(*arguments)
    assert str(raised.value) == f'{problem}: pip install "{wanted}"'


def test_a_checkout_that_is_not_installed_is_not_checked(installed, monkeypatch):
    installed.clear()

    def no_metadata(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(requirements, "requires", no_metadata)
    requirements.check_requirements("drafttree")


EXTRAS = {
    ("serve",): "serving needs llguidance, which is not installed",
    ("batch", "in.jsonl", "out.jsonl", "--ray"): "--ray needs ray, which is not installed",
    ("worker",): "a worker needs ai-dynamo, which is not installed",
    ("generate", "Hello", "--regex", "a+"): "a grammar needs llguidance, which is not installed",
    ("trace", "Hello", "--output", "page.html"): "a page needs jinja2, which is not installed",
}


@pytest.mark.parametrize("arguments", EXTRAS)
def test_commands_name_the_extra_that_they_need(installed, arguments, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hello"}\n')
    more = ['ray[data]>=2.55; extra == "ray"', 'ai-dynamo>=1.4; extra == "dynamo"']
    monkeypatch.setattr(requirements, "requires", lambda _: DECLARED + more)
    for package in ("fastapi", "llguidance", "jinja2"):
        del installed[package]
    assert EXTRAS[arguments] in complaint(capsys, *arguments)
