"""What the sources import is what pyproject.toml declares, and nothing of an extra is reached without it."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EXTRA_OF = {
    "src/drafttree/interfaces/server": "serve",
    "src/drafttree/interfaces/batch_requests.py": "serve",
    "src/drafttree/interfaces/dynamo": "dynamo",
    "src/drafttree/interfaces/ray_workers.py": "ray",
    "src/drafttree/interfaces/page_parts": "report",
    "src/drafttree/constraints/lark.py": "grammar",
    "src/drafttree/images": "images",
    "src/drafttree/loading/gguf": "gguf",
    "src/drafttree/models/native/kernels.py": "native",
    "src/drafttree/models/triton": "cuda",
    "lab/src/drafttree_lab/peers": "peers",
}
"""Sources that may import what an extra brings, since only what needs the extra reaches them."""
PACKAGES = {
    "drafttree_native": "drafttree-native",
    "dynamo": "ai-dynamo",
    "gguf": "gguf",
    "llama_cpp": "llama-cpp-python",
    "openvino": "openvino",
    "openvino_genai": "openvino-genai",
    "pydantic_core": "pydantic",  # which holds it at one version and documents it as its own
    "ray": "ray",
    "uvloop": "uvloop",
}
"""Packages of modules that need not be installed here, and of those that are part of another package."""


PACKAGES_OF = packages_distributions()
"""The installed packages that bring a module, by its first name."""


def read_project(path: str) -> dict:
    return tomllib.loads((ROOT / path).read_text())["project"]


PROJECTS = {
    "src": read_project("pyproject.toml"),
    "lab/src": read_project("lab/pyproject.toml"),
    "native": read_project("native/pyproject.toml"),
}


def names(requirements: list[str], project: dict) -> set[str]:
    """The packages of a list of requirements, and of the extras of the same project that it contains."""
    packages = set()
    for requirement in map(Requirement, requirements):
        packages.add(canonicalize_name(requirement.name))
        if requirement.name == project["name"]:
            for extra in requirement.extras:
                packages |= names(project["optional-dependencies"][extra], project)
    return packages


def declared(root: str, path: str) -> set[str]:
    """The packages that a source may import."""
    project = PROJECTS[root]
    packages = names(project.get("dependencies", []), project) | {project["name"]}
    for prefix, extra in EXTRA_OF.items():
        if path.startswith(prefix):
            packages |= names(project["optional-dependencies"][extra], project)
    return packages


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """The modules of all import statements, inside functions too, and of `import_module` with a name."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module
            case _:
                pass


def packages_of(module: str) -> set[str]:
    """The packages that bring a module; its own name where it is not known here."""
    name = module.split(".")[0]
    installed = PACKAGES_OF.get(name, [name])
    return {PACKAGES[name]} if name in PACKAGES else {canonicalize_name(package) for package in installed}


def undeclared(root: str, path: Path) -> list[str]:
    """Imports of a source that its project does not declare."""
    place = path.relative_to(ROOT).as_posix()
    allowed = declared(root, place)
    modules = {module.split(".")[0] for module in imported_modules(ast.parse(path.read_text()))}
    others = sorted(modules - sys.stdlib_module_names)
    return [f"{place}: {module}" for module in others if not packages_of(module) & allowed]


@pytest.mark.few(1)
@pytest.mark.parametrize("root", PROJECTS)
def test_every_import_is_declared(root):
    sources = sorted((ROOT / root).rglob("*.py"))
    assert sources
    assert [line for path in sources for line in undeclared(root, path)] == []


def test_an_import_that_is_not_declared_is_found():
    lines = ("import torch", "def later():", "  import fastapi.routing", "  import_module('ray.data')")
    modules = list(imported_modules(ast.parse("\n".join(lines))))
    assert modules == ["torch", "fastapi.routing", "ray.data"]
    allowed = declared("src", "src/drafttree/engine/decoder.py")
    assert [module for module in modules if not packages_of(module) & allowed] == ["fastapi.routing", "ray.data"]


def test_versions_of_one_package_are_the_same_in_both_projects():
    library, lab = (
        {*PROJECTS[root]["dependencies"], *chain(*PROJECTS[root]["optional-dependencies"].values())}
        for root in ("src", "lab/src")
    )
    library_names = {Requirement(line).name for line in library}
    shared = {line for line in lab if Requirement(line).name in library_names - {"drafttree"}}
    assert shared <= library
    assert len(shared) >= 8


def closure(packages: set[str], known: set[str]) -> set[str]:
    """Packages with all that they need themselves, as far as they are installed here."""
    for package in packages - known:
        known.add(package)
        try:
            needed = [Requirement(line) for line in requires(package) or ()]
        except PackageNotFoundError:
            continue
        active = {
            canonicalize_name(each.name) for each in needed if not each.marker or each.marker.evaluate({"extra": ""})
        }
        closure(active, known)
    return known


WITHOUT_EXTRAS = """
import sys
from importlib import import_module

blocked = set(sys.argv.pop(1).split(","))


class Hidden:
    "Finds what another finder finds, but for the modules that only extras bring."

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in blocked else self.finder.find_spec(name, path, target)


sys.meta_path[:] = map(Hidden, sys.meta_path)
for module in sys.argv.pop(1).split(","):
    import_module(module)
reached = blocked & {name.split(".")[0] for name in sys.modules}
assert not reached, reached
sys.argv[0] = "drafttree"
from drafttree.__main__ import main
main()
"""


def test_nothing_that_an_extra_brings_is_reached_without_it():
    library = PROJECTS["src"]
    core = closure(names(library["dependencies"], library), set())
    blocked = {
        module
        for module, packages in PACKAGES_OF.items()
        if not {canonicalize_name(package) for package in packages} & (core | {"drafttree", "drafttree-lab"})
    }
    assert {"fastapi", "llguidance", "matplotlib", "pytest"} <= blocked
    source = ROOT / "src"
    modules = [
        re.sub(r"\.__init__$", "", ".".join(path.relative_to(source).with_suffix("").parts))
        for path in sorted((source / "drafttree").rglob("*.py"))
        if path.name != "__main__.py"
        and not any(
            path.relative_to(ROOT).as_posix().startswith(prefix)
            for prefix, extra in EXTRA_OF.items()
            if extra in ("cuda", "serve", "dynamo")
        )
    ]
    command = ["generate", "The old man", "--max-new-tokens", "4", "--drafter", "embedded-eagle3", "--policy", "talon"]
    script = [sys.executable, "-c", WITHOUT_EXTRAS, ",".join(sorted(blocked)), ",".join(modules), *command]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "4 tokens" in done.stderr
