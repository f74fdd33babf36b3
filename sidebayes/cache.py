"""The folder of cached things, and JAX's own compilation cache, which is off unless asked for."""

from __future__ import annotations

import os
from pathlib import Path

from .common.folders import cache_folder, is_private

__all__ = ["cache_folder", "is_private", "use_compilation_cache"]


def use_compilation_cache() -> Path | None:
    """Switch on JAX's own cache, for what is compiled outside fits, and on accelerators.

    Fits keep their programs without it. It spares the compiler but not the tracing, and does not
    guard what it reads. This changes JAX's global configuration, so the library itself never calls it.

    Returns
    -------
    Path or None
        The folder: ``JAX_COMPILATION_CACHE_DIR`` or a part of `cache_folder`. None, and nothing is
        switched on, where there is neither or others can write there.
    """
    named, base = os.environ.get("JAX_COMPILATION_CACHE_DIR"), cache_folder()
    if named:  # JAX uses it in any case
        folder = Path(named)
    elif base is not None and is_private(base) and is_private(base / "jax"):
        folder = base / "jax"
    else:
        return None
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder
