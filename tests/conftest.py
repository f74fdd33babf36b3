"""Shared set-up: compiled programs are kept between runs by JAX, not by the library."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import jax
import pytest

os.environ.setdefault("MPLBACKEND", "Agg")
# most programs run for milliseconds and compile for seconds; processes that tests start do as well
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

from sidebayes.guides.engines.plumbing.store import use_program_store

from sidebayes.cache import use_compilation_cache

use_compilation_cache()
use_program_store(None)  # what a test changes in the library must be seen

MOST_MAPS = 20_000

DEAR = {
    "probes/test_growth.py::test_leaving_one_subject_out_is_brute_force": "refits in test_validation",
    "probes/test_growth.py::test_monte_carlo_em_finds_the_mode_of_exact_em": "test_monte_carlo_em",
    "probes/test_renamed.py::test_names_do_not_matter[False-cavi]": "the same with links",
    "probes/test_renamed.py::test_names_do_not_matter[False-gibbs]": "the same with links",
    "probes/test_probes.py::test_bare_numpyro_runs[labelled]": "the other probes",
    "guides/test_updates.py::test_names_of_sites_make_no_difference[cavi]": "test_renamed",
    "guides/test_updates.py::test_names_of_sites_make_no_difference[gibbs]": "test_renamed",
    "guides/test_conjugate_nested.py::test_the_bound_rises_and_bounds_what_the_sampler_sees": (
        "test_conjugate, test_coordinate_ascent"
    ),
    "guides/test_fisher.py::test_newton_finds_the_mode_of_lbfgs_in_fewer_gradients": (
        "test_metric_is_the_inverse_information_in_the_coordinates_of_the_model"
    ),
    "guides/test_svi.py::test_full_rank_in_many_coordinates": "test_svi in few",
    "guides/test_checkpoint.py::test_interrupted_run_ends_the_same[smc-0]": "the other engines",
    "guides/test_checkpoint.py::test_interrupted_run_ends_the_same[nested-0]": "the other engines",
    "front/test_fit.py::test_every_card_with_every_engine[ppc-nested]": "test_prior_samplers",
    "front/test_fit.py::test_every_card_with_every_engine[ppc-smc]": "test_prior_samplers",
    "front/test_fit.py::test_every_card_with_every_engine[ppc-hmc]": "ppc with nuts",
    "models/test_constrained_kmeans.py::"
    "test_wide_components_are_assigned_to_a_local_optimum_of_the_cost[method0]": "method1",
}
"""Tests that take longest and repeat another at another size, and what stands for them by default."""


def pytest_collection_modifyitems(items):
    """Run these with the slow ones."""
    for item in items:
        if item.nodeid.removeprefix("tests/") in DEAR:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", autouse=True)
def _few_memory_maps():
    """Every compiled program maps memory, and a process may have some 65,000 maps, then it dies."""
    yield
    maps = Path("/proc/self/maps")
    if maps.is_file() and len(maps.read_text().splitlines()) > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _optimised(request):
    """Files of long runs, marked ``optimised``, have their programs optimised."""
    quick = request.node.get_closest_marker("optimised") is None
    jax.config.update("jax_disable_most_optimizations", quick)


@pytest.fixture(scope="session", autouse=True)
def _no_user_cache():
    """Processes that a test starts leave the user's cache folder alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIDEBAYES_CACHE", "off")
        yield
