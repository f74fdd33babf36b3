"""Print the oldest versions that pyproject.toml allows, as constraints for pip."""

import tomllib
from pathlib import Path

EXTRAS = ("formulas", "isomap", "sampling", "tables", "test")

with Path(__file__).parents[1].joinpath("pyproject.toml").open("rb") as file:
    project = tomllib.load(file)["project"]

extras = project["optional-dependencies"]
for requirement in sum((extras[name] for name in EXTRAS), project["dependencies"]):
    print(requirement.replace(">=", "=="))
