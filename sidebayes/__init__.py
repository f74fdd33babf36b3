"""A probabilistic-programming model zoo for learning from side information."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from typing import Any

import lazy_loader

# names are listed in __init__.pyi, and imported when first asked for, so that the import is quick
_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name == "__version__":
        return version("sidebayes")
    if name not in __all__:
        raise AttributeError(f"module 'sidebayes' has no attribute {name!r}")
    with warnings.catch_warnings():
        # NumPyro imports tqdm, which asks notebooks for ipywidgets; our own bars need none
        warnings.filterwarnings("ignore", "IProgress not found")
        return _attribute(name)
