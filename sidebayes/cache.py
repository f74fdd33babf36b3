"""JAX's persistent compilation cache, on in the command line and the tests."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "use_compilation_cache"]


def cache_folder() -> Path:
    """Folder of cached things: ``SIDEBAYES_CACHE``, or the user's cache folder."""
    own = os.environ.get("SIDEBAYES_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sidebayes"


def use_compilation_cache() -> Path:
    """Keep compiled programs between processes; returns their folder.

    ``JAX_COMPILATION_CACHE_DIR``, JAX's own variable, takes precedence over `cache_folder`. This
    changes JAX's global configuration, so the library itself never calls it.
    """
    import jax

    from sidebayes.guides.engines.store import use_program_store

    folder = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache_folder() / "jax")
    folder.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    use_program_store(folder / "programs")
    return folder
