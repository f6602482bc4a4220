"""The face of the library: what it exports, that all of it is documented, and that importing it does nothing else."""

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import drafttree

EXPORTS = {
    "drafttree": {
        *(
            "Chunk",
            "CostCurve",
            "Decoder",
            "DraftTree",
            "DraftTreeError",
            "Engine",
            "Fidelity",
            "Generation",
            "GenerationOptions",
            "Handle",
            "Layer",
            "Metrics",
            "Proposal",
            "Sampling",
        ),
        *(
            "SpeedupLaw",
            "Verdict",
            "drafters",
            "errors",
            "exactness",
            "grammar",
            "hf",
            "load",
            "models",
            "policies",
            "verifiers",
        ),
    },
    "drafttree.drafters": {
        *(
            "LOOKUPS",
            "AssistantDrafter",
            "BlockDrafter",
            "Drafter",
            "Frontier",
            "HeadDrafter",
            "HiddenStates",
            "HydraDrafter",
            "LanguageModelDrafter",
        ),
        *("LookupDrafter", "MedusaDrafter", "MixedDrafter", "OtherTokenizerDrafter"),
        *("PromptLookupDrafter", "Session", "SuffixDrafter", "VocabularyMap", "count_pass"),
    },
    "drafttree.grammar": {"Grammar", "ebnf", "json_schema", "regex", "structural_tag"},
    "drafttree.hf": {"TreeGenerate", "generate"},
    "drafttree.models": {"CacheLayout", "LossyWindow", "Model", "Output", "Segment", "TargetModel", "TreeCache"},
    "drafttree.policies": {
        *(
            "POLICIES",
            "Auto",
            "Chain",
            "DySpec",
            "DynaTree",
            "Eagle",
            "Fixed",
            "OptTree",
            "Talon",
            "Template",
            "TreePolicy",
        ),
    },
    "drafttree.verifiers": {
        *("VERIFIERS", "Block", "Coupled", "Greedy", "GreedyMultiDraft", "KSeq", "LossyTypical", "PointMass", "RRS"),
        *("RRSw", "Traversal", "Verifier"),
    },
}
ERRORS = {
    *("ConfigError", "ContextError", "EngineClosedError", "InputError", "ModelError", "TokenizerMismatch"),
    "UnfinishedTextError",
}
STABILITY = (Path(__file__).parents[1] / "docs" / "stability.md").read_text()
MODULES = [name for _, name, _ in pkgutil.walk_packages(drafttree.__path__, "drafttree.")]

PROBE = """
import json, random, sys
import torch, transformers
from transformers import AutoModelForCausalLM, GenerationMixin, PreTrainedModel
def state():
    return {
        "seed": torch.initial_seed(), "random": random.getstate()[1][:3], "torch": torch.get_rng_state().tolist()[:9],
        "threads": torch.get_num_threads(), "dtype": str(torch.get_default_dtype()), "grad": torch.is_grad_enabled(),
        "cuda": torch.cuda.is_initialized(), "verbosity": transformers.utils.logging.get_verbosity(),
        "transformers": id(GenerationMixin._extract_generation_mode_kwargs),
    }
before, known = state(), set(sys.modules)
import drafttree
after = state()
changed = [name for name in before if before[name] != after[name]]
print(json.dumps({"changed": changed, "modules": sorted(set(sys.modules) - known)}))
"""


def public(module) -> dict[str, object]:
    """The classes and functions a module defines under a public name."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }


def imported(name: str):
    """A module, if the extra that it needs is installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("drafttree"):
            raise
        pytest.skip(f"{error.name} is not installed")


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_are_exactly_these(name):
    module = importlib.import_module(name)
    assert set(module.__all__) == EXPORTS[name]
    assert len(module.__all__) == len(EXPORTS[name])
    assert all(getattr(module, export) is not None for export in module.__all__)


ROWS = re.findall(r"^\| (?:what .* list in|classes of errors .*)", STABILITY, re.MULTILINE)
STABLE_MODULES = [re.sub(r"^\.", "drafttree.", name) for row in ROWS for name in re.findall("`(.*?)`", row)]


@pytest.mark.parametrize("name", STABLE_MODULES)
def test_what_the_page_on_stability_lists_is_imported_by_both_statements(name):
    module = importlib.import_module(name)
    for export in module.__all__:
        exec(f"import {name}\nfrom {name} import {export}\nassert {name}.{export} is {export}")


def test_star_import_gives_the_exports():
    names: dict[str, object] = {}
    exec("from drafttree import *", names)
    assert set(drafttree.__all__) <= set(names)


def test_every_error_is_a_drafttree_error():
    found = public(drafttree.core.errors)
    assert {name for name in found if name.endswith("Error") or name in ERRORS} == {*ERRORS, "DraftTreeError"}
    assert all(issubclass(found[name], drafttree.DraftTreeError) for name in ERRORS)


@pytest.mark.parametrize("name", MODULES)
def test_every_public_class_and_function_is_documented(name):
    assert not [key for key, value in public(imported(name)).items() if not value.__doc__]


@pytest.mark.parametrize("name", EXPORTS)
def test_every_public_method_of_an_export_is_documented(name):
    module = importlib.import_module(name)
    classes = [value for value in (getattr(module, export) for export in module.__all__) if inspect.isclass(value)]
    bare = [
        f"{cls.__name__}.{key}"
        for cls in classes
        for key, value in vars(cls).items()
        if not key.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod))
        if not inspect.getdoc(getattr(cls, key))
    ]
    assert not bare


@pytest.mark.parametrize("policy", drafttree.policies.POLICIES.values())
def test_every_policy_names_its_source_and_explains_its_parameters(policy):
    assert policy.source
    assert all(field.description for field in policy.model_fields.values())


@pytest.mark.parametrize("verifier", drafttree.verifiers.VERIFIERS.values())
def test_every_verifier_names_its_source(verifier):
    assert verifier.source


def test_importing_loads_and_changes_nothing_it_need_not():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    seen = json.loads(done.stdout)
    assert not seen["changed"]
    assert done.stderr == ""
    heavy = {
        "matplotlib",
        "typer",
        "rich",
        "scipy",
        "pandas",
        "datasets",
        "fastapi",
        "pytest",
        "hypothesis",
        "llguidance",
    }
    assert not (heavy | {"drafttree_lab"}) & {module.partition(".")[0] for module in seen["modules"]}
    ours = {module for module in seen["modules"] if module.startswith("drafttree.")}
    assert not ours & {"drafttree.interfaces.cli", "drafttree.evaluation.certify"}
