"""The house: who may import whom, how long an import takes, what is documented."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import sidebayes

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = {
    "common": ("sidebayes.common",),
    "models/blocks": ("sidebayes.models.blocks", "sidebayes.common"),
    "models": ("sidebayes.models", "sidebayes.common"),
    "guides": ("sidebayes.guides", "sidebayes.models", "sidebayes.common"),
    "diagnostics": (
        "sidebayes.diagnostics",
        "sidebayes.guides",
        "sidebayes.models.blocks",
        "sidebayes.common",
    ),
    "sidebayes": ("sidebayes",),
}
"""What each part of the library may import of it."""
HALLS = ("sidebayes", "models", "models/blocks", "guides", "guides/engines", "diagnostics")
"""Folders whose files are rooms of their own; every other folder is one room."""
MOST = 12
"""Files in a folder; folders with one file per method may have more."""
LONGEST = 160
"""Lines of the file of a model, docstring included."""


def part_of(path: Path) -> str:
    folder = path.relative_to(ROOT).parts
    if folder[:2] == ("models", "blocks"):
        return "models/blocks"
    return "common" if folder[:2] == ("sidebayes", "common") else folder[0]


def room_of(path: Path) -> str:
    place = path.relative_to(ROOT)
    inside = str(place.parent) in HALLS and path.name != "__init__.py"
    return str(place.with_suffix("") if inside else place.parent)


def source_files() -> list[Path]:
    tops = ("models", "guides", "diagnostics", "sidebayes")
    return sorted(path for top in tops for path in (ROOT / top).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "sidebayes" else parts
    return ".".join(["sidebayes", *(p for p in parts if p != "__init__")])


MODULES = {module_name(path): path for path in source_files()}


@cache
def import_statements(path: Path) -> list[tuple[str, list[str]]]:
    """Modules that a file imports, those imported for types alone included, and what it takes of each."""
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: list[tuple[str, list[str]]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base]).rstrip(".")
            found.append((base, [alias.name for alias in node.names]))
    return found


def own_imports(path: Path) -> set[str]:
    """Modules of ours that a file imports, those imported for types alone included."""
    found = set()
    for base, names in import_statements(path):
        found |= {base} | ({f"{base}.{name}" for name in names} & MODULES.keys())
    return {n for n in found if n == "sidebayes" or n.startswith("sidebayes.")}


@pytest.mark.parametrize("path", source_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_import_rule(path):
    allowed = ALLOWED[part_of(path)]
    for name in own_imports(path):
        assert any(name == a or name.startswith(a + ".") for a in allowed), f"{path} imports {name}"


@pytest.mark.parametrize("level", [str, room_of], ids=["files", "rooms"])
def test_no_circle_of_imports(level):
    """No room imports another that imports it, however far round: there is an order of the rooms."""
    graph: dict[str, set[str]] = {}
    for path in source_files():
        targets = (MODULES[name] for name in own_imports(path) if name in MODULES)
        own = {level(target) for target in targets if target.name != "__init__.py"}
        graph.setdefault(level(path), set()).update(own - {level(path)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(f"a circle of imports: {circle.args[1]}")


def test_rooms_are_small():
    folders = {path.parent for path in source_files()} - {ROOT / "models", ROOT / "guides"}
    sizes = {str(f.relative_to(ROOT)): len(list(f.glob("*.py"))) for f in folders}
    assert {name: size for name, size in sizes.items() if size > MOST} == {}


def test_only_models_name_the_class_of_linked_mixtures():
    """Engines, diagnostics and the front door ask the protocols that it keeps."""
    module = "sidebayes.models.blocks.mixtures.linked_mixture"
    users = {part_of(path) for path in source_files() if module in own_imports(path)}
    assert users == {"models", "models/blocks"}


def test_fits_and_objects_are_typed():
    """Neither a fit nor an object itself is anything at all: mypy then sees what is asked of it."""
    untyped = []
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.arg) and node.arg in ("self", "fit", "fits"):
                names = ast.walk(node.annotation) if node.annotation else ()
                if any(isinstance(name, ast.Name) and name.id == "Any" for name in names):
                    untyped.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert untyped == []


def test_types_are_checked_across_rooms():
    """Mypy reads links to all parts under the one import name; without a link, types end at a room."""
    links = ROOT / ".ci" / "types" / "sidebayes"
    parts = {path.name: path for path in (ROOT / "sidebayes").iterdir()}
    parts |= {top: ROOT / top for top in ("models", "guides", "diagnostics")}
    parts.pop("__pycache__", None)
    assert {link.name: link.resolve() for link in links.iterdir()} == parts


def model_files() -> list[Path]:
    return sorted((ROOT / "models").glob("[!_]*.py"))


@pytest.mark.parametrize("path", model_files(), ids=lambda p: p.stem)
def test_a_model_is_one_function_of_blocks(path):
    """The file is short, defines its model and no helper, and takes nothing of a model but the model."""
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST
    tree = ast.parse(text)
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    defined = [getattr(node, "name", "λ") for node in ast.walk(tree) if isinstance(node, kinds)]
    assert defined == [path.stem]
    models = {f"sidebayes.models.{model.stem}": model.stem for model in model_files()}
    for module, names in import_statements(path):
        assert not {f"{module}.{name}" for name in names} & models.keys(), "import the function"
        assert module not in models or names == [models[module]]


def test_import_rule_sees_relative_imports():
    found = own_imports(ROOT / "guides" / "engines" / "expectation_maximisation" / "em.py")
    assert "sidebayes.guides.engines.base" in found
    assert own_imports(ROOT / "models" / "ppc.py") >= {
        "sidebayes.models.blocks.side_information.links"
    }


def test_import_is_quick_and_leaves_jax_alone():
    code = (
        "import time; began = time.perf_counter(); import sidebayes; "
        "print(time.perf_counter() - began); import sys; print('jax' in sys.modules); "
        "sidebayes.fit, sidebayes.Links, sidebayes.NUTS; import jax; print(jax.config.jax_enable_x64); "
        "print(jax.config.jax_compilation_cache_dir); print('matplotlib.pyplot' in sys.modules)"
    )
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean
    ).stdout.split()
    assert float(out[0]) < 2.0
    assert out[1:4] == ["False", "False", "None"]


def test_data_sets_do_not_wait_for_jax():
    """NumPyro, imported within `load_dataset`, would also ask notebooks for ipywidgets."""
    code = (
        "import sidebayes, sys; sidebayes.load_dataset('crabs', label='sex'); "
        "sidebayes.load_dataset('iris'); print([m for m in ('jax', 'numpyro', 'tqdm') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sidebayes.__all__)
def test_public_names_are_documented(name):
    thing = getattr(sidebayes, name)
    if isinstance(thing, dict):
        return
    doc = inspect.getdoc(thing)
    assert doc is not None
    assert len(doc) > 15
    if inspect.isclass(thing):
        members = [m for n, m in vars(thing).items() if not n.startswith("_")]
        for member in members:
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function):
                assert inspect.getdoc(function), f"{name}.{function.__name__}"


def test_every_module_documents_what_it_exports():
    for path in source_files():
        if path.name == "__init__.py" and path.parent.name != "sidebayes":
            continue
        module = import_module(module_name(path))
        assert module.__doc__, path
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isfunction(thing) or inspect.isclass(thing):
                assert inspect.getdoc(thing), f"{path}: {name}"


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = sidebayes.nonsense
