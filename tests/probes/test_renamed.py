"""No engine and no diagnostic knows the name of a site or of an argument."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from sidebayes.diagnostics.symmetry.invariants import invariants
from sidebayes.models.gmm import gmm
from sidebayes.models.ppc import ppc

import sidebayes as sb
from tests.probes import models
from tests.probes.data import IRIS, SPECIES

LINKS = sb.simulate_links(SPECIES, 20).with_strength(1.0)
NAMES = {"weights": "pi", "mean": "loc", "covariance": "c_sigma", "flip_rate": "error"}
CHAINS = {"num_warmup": 10, "num_samples": 10, "num_chains": 2}
ENGINES = {
    "em": sb.EM(num_restarts=3),
    "map": sb.MAP(num_restarts=2, max_steps=40),
    "laplace": sb.Laplace(num_restarts=2, num_draws=100),
    "svi": sb.SVI(num_restarts=2, num_steps=200, num_draws=100),
    "cavi": sb.CoordinateAscent(num_restarts=2, num_draws=100),
    "gibbs": sb.BlockedGibbs(**CHAINS),
    "nuts": sb.NUTS(**CHAINS),
    "hmc": sb.HMC(**CHAINS),
    "mclmc": sb.MCLMC(**CHAINS),
    "stochastic_em": sb.StochasticEM(batch_size=50, max_epochs=2),
    "smc": sb.SMC(num_particles=20),
}
QUICK = ("em", "cavi", "gibbs")


def plain_gmm(x, *, num_clusters):
    """`gmm` without its card."""
    gmm(x, num_clusters=num_clusters)


def plain_ppc(x, links=None, *, num_clusters):
    """`ppc` with a learned flip rate, without its card."""
    ppc(x, links, num_clusters=num_clusters, reading="relation", flip_rate="learned")


@pytest.mark.parametrize(
    "engine", [pytest.param(e, marks=() if e in QUICK else pytest.mark.slow) for e in ENGINES]
)
@pytest.mark.filterwarnings("ignore:clusters cannot be matched")  # few draws
@pytest.mark.parametrize("linked", [False, True])
def test_names_do_not_matter(engine, linked):
    """Coordinates are in the order of the names, so that the new ones keep the order of the old."""
    pair = (plain_ppc, models.renamed_ppc) if linked else (plain_gmm, models.renamed_gmm)
    given = (IRIS, LINKS) if linked else (IRIS,)
    runner = ENGINES[engine]
    plain, other = (
        sb.fit(model, *given, num_clusters=3, engine=runner, progress=False) for model in pair
    )
    for name, value in plain.tree["posterior"].data_vars.items():
        found = other.tree["posterior"][NAMES[str(name)]]
        np.testing.assert_allclose(found, value, rtol=1e-10, atol=1e-10)
        assert found.dims == value.dims
        assert found.attrs.get("role") == value.attrs.get("role")
    assert sorted(map(str, invariants(other.tree))) == sorted(
        NAMES.get(str(name), str(name)) for name in invariants(plain.tree)
    )
    np.testing.assert_allclose(other.responsibilities(), plain.responsibilities(), atol=1e-10)
    np.testing.assert_array_equal(other.labels(), plain.labels())
    assert other.convergence == pytest.approx(plain.convergence, nan_ok=True)
    np.testing.assert_allclose(
        other.predict_proba(IRIS[:5]), plain.predict_proba(IRIS[:5]), atol=1e-10
    )


def test_pictures_of_renamed_sites_show_the_same():
    first, second = (
        sb.fit(model, IRIS, num_clusters=3, engine=ENGINES["em"], progress=False).plot()
        for model in (plain_gmm, models.renamed_gmm)
    )
    for figure in (first, second):
        figure.canvas.draw()
    np.testing.assert_array_equal(
        np.asarray(first.canvas.buffer_rgba()), np.asarray(second.canvas.buffer_rgba())
    )


def test_no_engine_or_diagnostic_names_a_site():
    names = r'"(mean|covariance|variance|weights|component_weights|flip_rate|coefficients|x)"'
    found = subprocess.run(
        ["git", "grep", "-n", "-E", names, "--", ":/guides/engines/*.py", ":/diagnostics/*.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    # doctests name their sites; the middle of a band is a column of an answer, and roles are no sites
    others = (
        "...",
        'plot(grid, own["mean"]',
        'plot(grid, one["mean"]',
        'shapes["mean"]',
        'difference["mean"]',
        "_SHOWN_ELSEWHERE = (",
    )
    code = [line for line in found.stdout.splitlines() if not any(o in line for o in others)]
    assert code == []
