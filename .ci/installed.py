"""Check what users install: build an sdist and from it a wheel, and use the wheel outside the checkout.

Run with the Python of the development environment. It makes two environments in a temporary folder: one
with the wheel and its dependencies alone, and one that shares the development environment's packages and
has the unpacked sdist, some of whose tests are passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {".gitignore", ".python-version"}
"""What only a checkout needs."""
TESTS = (
    "tests/test_imports.py::test_unknown_attribute",
    "tests/blocks/side_information/test_roles.py",
)
"""Quick ones that are passed from the sdist."""
UV = Path(sys.executable).with_name("uv")
"""Installs sooner than pip, where `make install` could get it."""
HASTE = {"PIP_NO_COMPILE": "1"}
"""What is installed here and not imported need not be compiled."""


def main() -> None:
    """Build, compare with the checkout, install, use."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        by = ("--installer", "uv") if UV.is_file() else ()
        call(sys.executable, "-m", "build", *by, "--outdir", place / "dist", ROOT)
        (sdist,) = place.glob("dist/*.tar.gz")
        (wheel,) = place.glob("dist/*.whl")
        compare(sdist, wheel)
        use_wheel(wheel, place)
        use_sdist(sdist, place)


def call(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command that must succeed, away from the checkout's own path."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run(list(map(str, command)), cwd=cwd, env=clean | HASTE, check=True)


def install(python: Path, *what: str | Path) -> None:
    """Install into another environment."""
    if UV.is_file():
        call(UV, "pip", "install", "--quiet", "--python", python, *what)
    else:
        call(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def compare(sdist: Path, wheel: Path) -> None:
    """Every file of the checkout is in the sdist, every module in the wheel."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True
    )
    tracked = set(listed.stdout.split())
    with tarfile.open(sdist) as archive:
        carried = {name.partition("/")[2] for name in archive.getnames()}
    missing = tracked - carried - LEFT_OUT
    with ROOT.joinpath("pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
    modules = {
        f"{name.replace('.', '/')}/{path.removeprefix(folder + '/')}"
        for name, folder in folders.items()
        for path in tracked
        if path.startswith(f"{folder}/")
    }
    missing |= modules - set(zipfile.ZipFile(wheel).namelist())
    if missing:
        sys.exit(f"not in the sdist or the wheel: {sorted(missing)}")
    print(f"the sdist has {len(tracked)} files of the checkout, the wheel {len(modules)} modules")


def use_wheel(wheel: Path, place: Path) -> None:
    """Install the wheel alone, without extras, and use it."""
    call(sys.executable, "-m", "venv", place / "clean")
    python = place / "clean" / "bin" / "python"
    install(python, wheel)
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    script = ROOT / "tests" / "installed" / "use.py"
    call(python, "-I", script, ROOT / "README.md", cwd=elsewhere)


def use_sdist(sdist: Path, place: Path) -> None:
    """Unpack the sdist, install it, and pass some of its tests."""
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    source = place / sdist.name.removesuffix(".tar.gz")
    call(sys.executable, "-m", "venv", place / "tested")
    python = place / "tested" / "bin" / "python"
    packages = next(place.glob("tested/lib/python*/site-packages"))
    # packages of the development environment, but not the checkout that it has in place
    packages.joinpath("development.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install(python, "--no-deps", "--editable", source)
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    call(*pytest, *TESTS, cwd=source)


if __name__ == "__main__":
    main()
