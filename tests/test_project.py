"""The project as a whole: what imports what when it runs, what the code may not do, what is pinned."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
OURS = ("engine", "kernels", "pagechat", "themes", "tests")


def run_python(code: str, *, path: tuple[Path, ...] = (ROOT,)) -> subprocess.CompletedProcess[str]:
    """`code` in a new interpreter that finds packages in `path` first."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=environment, capture_output=True, text=True, timeout=120
    )


IMPORT_ALL = """
import importlib, pkgutil, sys
for name in {names!r}:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        if not found.name.endswith(".__main__"):
            importlib.import_module(found.name)
print(*sorted(set(name.partition(".")[0] for name in sys.modules)))
"""


def imported_by(*names: str) -> set[str]:
    """Top-level packages in memory after importing these modules and all below them."""
    result = run_python(IMPORT_ALL.format(names=names))
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        (("pagechat.daemon", "pagechat.client", "pagechat.cli"), {"textual", "torch", "transformers", "kernels"}),
        (("pagechat.app", "pagechat.store"), {"torch", "transformers", "kernels"}),
        (("pagechat.bench",), {"textual", "torch", "transformers"}),
        (
            ("engine.protocol", "engine.process.config", "engine.blocks"),
            {"torch", "transformers", "textual", "pagechat"},
        ),
        (
            ("engine.process.loop",),
            {"torch", "transformers", "textual", "pagechat"},
        ),  # tells first
        (("kernels",), {"engine", "pagechat", "transformers", "textual"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else None,
)
def test_a_part_leaves_out_of_memory_what_it_must_not_know(modules: tuple[str, ...], forbidden: set[str]) -> None:
    assert imported_by(*modules) & forbidden == set()


def test_importing_torch_is_seen_by_the_check_above() -> None:
    assert "torch" in imported_by("engine.execution.runner")


def test_a_foreign_kernels_package_is_named_in_one_sentence(tmp_path: Path) -> None:
    # given another project's `kernels`, found before ours
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/__init__.py").touch()
    # when the engine is imported
    result = run_python("import engine", path=(tmp_path, ROOT))
    # then the last line says which one shadows ours, and what to do
    assert result.returncode == 1
    sentence = result.stderr.strip().splitlines()[-1]
    assert f"{tmp_path}/kernels" in sentence
    assert "environment of its own" in sentence


def test_a_foreign_kernels_installed_into_the_same_folder_is_named_too(tmp_path: Path) -> None:
    # given an environment where pagechat and a distribution named kernels wrote the same folder
    for name in ("engine", "kernels"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_bytes((ROOT / name / "__init__.py").read_bytes())
    assert run_python("import engine", path=(tmp_path,)).returncode == 0
    (tmp_path / "kernels-0.12.0.dist-info").mkdir()
    # when, then
    assert "ForeignKernels" in run_python("import engine", path=(tmp_path,)).stderr


UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
UNSAFE_CALLS = {
    "torch.load",
    "yaml.load",
    "yaml.full_load",
    "yaml.unsafe_load",
    "eval",
    "exec",
    "os.system",
    "os.popen",
}
UNSAFE_KEYWORDS = {"trust_remote_code": True, "allow_pickle": True, "shell": True}


def unsafe(tree: ast.AST) -> Iterator[str]:
    """Everything in a module that could run what a model, a file or a peer says. A keyword is safe only as False."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            yield from (
                f"{line}: import {name.name}" for name in node.names if name.name.split(".")[0] in UNSAFE_MODULES
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            yield f"{line}: from {node.module} import"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in UNSAFE_CALLS:
                yield f"{line}: {called}()"
            for keyword in node.keywords:
                safe = isinstance(keyword.value, ast.Constant) and not keyword.value.value
                if keyword.arg in UNSAFE_KEYWORDS and not safe:
                    yield f"{line}: {ast.unparse(keyword)}"


def test_nothing_in_the_tree_runs_what_it_is_told_by_data() -> None:
    files = [file for folder in OURS for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 20
    found = [f"{file.relative_to(ROOT)}:{what}" for file in files for what in unsafe(ast.parse(file.read_bytes()))]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import torch; torch.load(path)",
        "yaml.load(text)",
        "eval(text)",
        "exec(text)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=flag)",
        "numpy.load(path, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_each_way_of_running_data_is_recognised(code: str) -> None:
    assert len(list(unsafe(ast.parse(code)))) == 1


@pytest.mark.parametrize("code", ["model.eval()", "f(trust_remote_code=False)", "from_pickled = 1"])
def test_harmless_code_is_not_taken_for_it(code: str) -> None:
    assert list(unsafe(ast.parse(code))) == []


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_dependency_is_pinned_to_a_version_in_its_range() -> None:
    # given the versions of constraints.txt
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if line and not line.startswith("#"))
    # then what pyproject.toml asks for is among them
    declared = project()
    required = [*declared["dependencies"], *declared["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, required):
        assert requirement.name in pins
        assert requirement.specifier.contains(pins[requirement.name]), requirement


def test_the_changelog_tells_of_this_version() -> None:
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == project()["version"]


def test_a_wheel_holds_every_file_that_lies_among_the_code() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["*"]
    found = [
        path
        for package in OURS
        if package != "tests"
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and not path.parent.name.endswith("_cache")
    ]
    assert ROOT / "pagechat/bench/passage.txt" in found
    assert [path for path in found if not any(path.match(pattern) for pattern in patterns)] == []
