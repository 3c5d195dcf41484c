"""What a stranger meets before the code: metadata, links, citation, workflows."""

from __future__ import annotations

import email
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from xnorpp.training.recipe.config import tomllib

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
REPOSITORY = "https://host.example/owner/name"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def _links() -> ModuleType:
    spec = importlib.util.spec_from_file_location("index_links", ROOT / ".github" / "index_links.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_metadata_names_its_authors_and_the_paper() -> None:
    assert PROJECT["authors"] == [{"name": "The xnorpp contributors"}]
    assert all(url.startswith("https://") for url in PROJECT["urls"].values())


def test_a_package_index_gets_no_relative_link() -> None:
    links = _links()
    text = links.absolute((ROOT / "README.md").read_text(encoding="utf-8"), REPOSITORY, "v1")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith(("https://", "http://", "#"))] == []
    assert f"{REPOSITORY}/blob/v1/docs/" in text
    assert links.absolute("![a](b.svg) [c](https://d) [e](#f)", REPOSITORY, "v1") == (
        f"![a]({REPOSITORY}/raw/v1/b.svg) [c](https://d) [e](#f)"
    )
    assert links.absolute("[![a](b.png)](c.md#d)\n[e]: f.md\n<img src='g.gif'>", REPOSITORY, "v1") == (
        f"[![a]({REPOSITORY}/raw/v1/b.png)]({REPOSITORY}/blob/v1/c.md#d)\n[e]: {REPOSITORY}/blob/v1/f.md\n"
        f"<img src='{REPOSITORY}/raw/v1/g.gif'>"
    )
    urls = tomllib.loads(links.with_urls((ROOT / "pyproject.toml").read_text(encoding="utf-8"), REPOSITORY))
    assert urls["project"]["urls"]["Repository"] == REPOSITORY
    assert urls["project"]["urls"]["Paper"] == PROJECT["urls"]["Paper"]


def test_the_metadata_of_a_wheel_is_what_an_index_needs(tmp_path: Path) -> None:
    """Made by the build backend itself, from a checkout that was prepared as the workflow does it."""
    pytest.importorskip("scikit_build_core")
    (tmp_path / ".github").mkdir()
    names = ("pyproject.toml", "README.md", "LICENSE", "CMakeLists.txt", ".github/index_links.py")
    for name in names:
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "src" / "xnorpp").mkdir(parents=True)
    prepare = [sys.executable, ".github/index_links.py", REPOSITORY, "v1"]
    subprocess.run(prepare, cwd=tmp_path, check=True)
    code = "from scikit_build_core.build import prepare_metadata_for_build_wheel as make\nprint(make('made'))"
    made = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)
    folder = tmp_path / "made" / made.split()[-1]
    metadata = email.message_from_string((folder / "METADATA").read_text(encoding="utf-8"))
    assert metadata["Name"] == "xnorpp"
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["Author"] == "The xnorpp contributors"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == "<3.14,>=3.10"
    assert metadata["Description-Content-Type"] == "text/markdown"
    urls = dict(entry.split(", ", 1) for entry in metadata.get_all("Project-URL", []))
    assert {"Repository", "Issues", "Changelog", "Paper"} <= set(urls)
    assert all(url.startswith("https://") for url in urls.values())
    needed = [row for row in metadata.get_all("Requires-Dist", []) if "extra ==" not in row]
    assert sorted(re.split(r"[<>=]", row)[0] for row in needed) == ["numpy", "pillow", "safetensors"]
    text = metadata.get_payload()
    assert isinstance(text, str)
    targets = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r"(?:src|href)=[\"']([^\"']+)", text)
    assert len(targets) > 10
    assert [target for target in targets if not re.match(r"https?://|#", target)] == []
    assert "xnorpp" in (folder / "entry_points.txt").read_text()


def test_demo_and_wheel_install_only_what_they_need() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    def recipe(target: str) -> str:
        found = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)*)", makefile, re.MULTILINE)
        assert found, target
        return found[1]

    demo = recipe("$(VENV)/.demo")
    assert "'.[train]'" in demo
    assert "--group" not in demo
    assert "pip install --quiet 'build" in recipe("$(VENV)/.build")
    assert "torch" not in recipe("$(VENV)/.build") + recipe("wheel")
    developer = {re.split(r"[<>=\[]", one)[0] for one in TOOLS["dev"]}
    assert {"pytest", "mypy", "ruff", "mkdocs"} <= developer
    assert not developer & {re.split(r"[<>=\[]", one)[0] for one in PROJECT["optional-dependencies"]["train"]}


def test_issue_templates_are_forms_that_github_reads() -> None:
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    assert "blank_issues_enabled" in yaml.safe_load((folder / "config.yml").read_text(encoding="utf-8"))
    for path in (folder / "bug.yml", folder / "idea.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= set(form), path
        assert {one["type"] for one in form["body"]} <= {
            "markdown",
            "textarea",
            "input",
            "dropdown",
            "checkboxes",
        }
        assert len({one["id"] for one in form["body"] if "id" in one}) >= 2, path
    assert (ROOT / ".github" / "pull_request_template.md").stat().st_size > 100


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "title", "message", "authors", "version", "references"} <= set(citation)
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["references"][0]["title"].startswith("XNOR-Net++")
    assert citation["references"][0]["url"] == PROJECT["urls"]["Paper"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_whole(path: Path) -> None:
    workflow: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "runs-on" in job
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            for script in re.findall(r"(?:python )?(\.(?:ci|github)/[\w./]+)", step.get("run", "")):
                assert (ROOT / script).is_file(), script
            for target in re.findall(r"\bmake (\w+)", step.get("run", "")):
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_every_python_that_is_promised_is_tested_and_built() -> None:
    promised = {entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if ":: Python :: 3." in entry}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    assert set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == promised
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    built = {f"3.{number}" for number in re.findall(r"cp3(\d+)-", tools["cibuildwheel"]["build"])}
    assert built == promised
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in promised


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE"])
def test_the_policies_are_there_and_name_no_invented_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(text) > 500
    assert not re.search(r"[\w.]+@[\w.]+\.\w+", text)


def test_the_security_policy_names_what_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("fuzz", "sanitize", "soak"):
        assert f"`make {target}`" in text
        assert re.search(rf"^{target}: ", makefile, re.MULTILINE)
    for pattern in re.findall(r"`(tests/[\w/*.]+)`", text):
        assert list(ROOT.glob(pattern)), pattern


def test_the_published_documentation_links_to_its_repository() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text(encoding="utf-8"))
    build = next(step for step in workflow["jobs"]["build"]["steps"] if step.get("run") == "make docs")
    for key, variable in (("repo_url", "REPOSITORY_URL"), ("repo_name", "REPOSITORY_NAME")):
        assert f"{key}: !ENV [{variable}," in site
        assert "github.repository" in build["env"][variable]
