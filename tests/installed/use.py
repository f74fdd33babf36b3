"""Use an installed sidebayes without extras: `python use.py README.md` in an empty folder.

Needs nothing but the standard library and sidebayes; `.ci/installed.py` runs it on the wheel.
"""

import json
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

import sidebayes
from sidebayes.runs.cards import resolve
from sidebayes.runs.zoo import ENGINES

COMMAND = Path(sys.executable).with_name("sidebayes")
QUICK = ("--setting", "num_restarts=1", "--setting", "max_steps=5")
LENGTH = "num_warmup=300, num_samples=300"
"""Of the chains in README: most of the time that its blocks take."""
LONG = ("--columns", "y=y", "--group", "who", "--columns")
FITS = (  # one of each family
    ("gmm", "iris", *QUICK),
    ("constrained_kmeans", "iris", "--num-links", "10"),
    ("moe", "iris", "--num-known", "30", "--labels", "labels.csv", *QUICK),
    (
        "trajectories",
        "long.csv",
        *LONG,
        "inputs=t",
        "--num-clusters",
        "2",
        "--engine",
        "em",
        *QUICK,
    ),
    ("mixed_effects", "long.csv", *LONG, "random=one", "--option", "form=marginal", *QUICK),
)
ROLL = np.random.default_rng(0).normal(size=(30, 3))
COMPILED = re.compile(r"\.isomap\.(products|graphs\.(paths|removals))$")
"""Modules that the library of an extra compiles; they are imported when they are used."""
WITHOUT = {
    "numba": lambda: sidebayes.IncrementalIsomap().fit(ROLL).partial_fit(ROLL[:1] + 0.01),
    "formulae": lambda: sidebayes.design("y ~ t + (1 | who)", long_table()),
    "blackjax": lambda: sidebayes.fit("gmm", np.eye(3), num_clusters=1, engine="nested"),
    "pyarrow": lambda: long_table().pipe(read_parquet),
}
"""What needs a library that only an extra brings."""


def long_table() -> pd.DataFrame:
    """Repeated measures of eight subjects."""
    who, t = np.repeat(np.arange(8), 4), np.tile(np.arange(4.0), 8)
    y = t * np.where(who < 4, 1, -1) + np.random.default_rng(0).normal(size=32)
    return pd.DataFrame({"who": who, "one": 1.0, "t": t, "y": y})


def read_parquet(table: pd.DataFrame) -> None:
    """Read a file whose name says that it is one of Parquet."""
    table.to_csv("table.parquet")
    sidebayes.load_dataset("table.parquet")


def command(*arguments: str) -> str:
    """Run the command line; its output."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"sidebayes {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def import_all() -> None:
    """Import every module, every public name, every model, routine and engine."""
    assert Path(sys.prefix) in Path(sidebayes.__file__).parents, sidebayes.__file__
    modules = [one.name for one in pkgutil.walk_packages(sidebayes.__path__, "sidebayes.")]
    for name in modules:
        if not COMPILED.search(name):
            import_module(name)
    for name in sidebayes.__all__:
        getattr(sidebayes, name)
    for card in sidebayes.CARDS.values():
        assert card.signature.data, card.name
        assert callable(card.model)
        assert callable(card.routine)
    for path in ENGINES.values():
        resolve(path)
    print(f"{len(modules)} modules, {len(sidebayes.__all__)} names, {len(sidebayes.CARDS)} cards")


def lack_extras() -> None:
    """What needs an extra says so, with the command that installs it."""
    for library, use in WITHOUT.items():
        assert find_spec(library) is None, f"{library} is installed; nothing is shown"
        said = "nothing"
        try:
            use()
        except ImportError as error:
            said = str(error)
        assert "pip install 'sidebayes[" in said, f"without {library}: {said}"
    print(f"without {', '.join(WITHOUT)}: errors that say what to install")


def run_readme(page: Path) -> None:
    """Run the Python blocks of README one after another, with fewer draws."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    assert blocks
    assert any(LENGTH in block for block in blocks), f"no {LENGTH} in {page.name}"
    names = {"__name__": "readme"}
    for block in blocks:
        short = block.replace(LENGTH, "num_warmup=50, num_samples=50")
        exec(compile(short, str(page), "exec"), names)
    print(f"{len(blocks)} blocks of {page.name}")


def run_commands() -> None:
    """List the cards and fit one of each family."""
    rows = json.loads(command("list", "--json"))
    assert [row["name"] for row in rows if row["kind"] == "method"] == list(sidebayes.CARDS)
    long_table().to_csv("long.csv", index=False)
    for arguments in FITS:
        command("fit", *arguments)
    print(f"{len(FITS)} fits by the command line")


if __name__ == "__main__":
    import_all()
    lack_extras()
    run_commands()
    run_readme(Path(sys.argv[1]))
