"""Shared set-up: float64 is local to a test, compiled programs are kept between runs."""

from __future__ import annotations

import os

os.environ.setdefault("MPLBACKEND", "Agg")

from sidebayes.guides.engines.store import use_program_store

from sidebayes.cache import use_compilation_cache

use_compilation_cache()
use_program_store(None)  # what a test changes in the library must be seen
