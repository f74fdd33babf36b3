"""Find the packages in the folders that pyproject.toml maps to import names."""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup

with Path(__file__).with_name("pyproject.toml").open("rb") as file:
    FOLDERS = tomllib.load(file)["tool"]["setuptools"]["package-dir"]

setup(
    packages=[
        f"{name}.{part}".rstrip(".")
        for name, folder in FOLDERS.items()
        for part in ("", *find_packages(folder))
    ]
)
