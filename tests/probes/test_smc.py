"""Sequential Monte Carlo on models as a user writes them: against NUTS, and against quadrature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from sidebayes.diagnostics.symmetry.invariants import invariants

import sidebayes as sb
from tests.probes.test_loo import CASES, holding
from tests.probes.test_probes import PROBES, fit

PROPER = [name for name in PROBES if name != "robust"]
QUICK = ("counts",)
"""The others take half a minute each, most of it to compile."""


def by_name(names):
    return [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in names]


@pytest.mark.parametrize("probe", by_name(PROPER))
@pytest.mark.filterwarnings("ignore:clusters cannot be matched")  # few particles
def test_probes_with_proper_priors_run(probe):
    found = fit(probe, sb.SMC(num_particles=50, num_runs=2, num_mutations=2))
    assert np.isfinite(found.tree["sample_stats"]["lp"]).all()
    assert np.isfinite(found.log_evidence.value)
    assert np.isfinite(found.unit_terms).all()


def test_improper_priors_are_refused_by_name():
    with pytest.raises(ValueError, match="that of site 'centre' is improper"):
        fit("robust", sb.SMC())


@pytest.mark.parametrize("probe", by_name(["counts", "growth", "lines", "shifted"]))
def test_means_agree_with_those_of_nuts(probe):
    """Of what does not depend on the numbering of clusters; runs and chains are independent."""
    engines = (
        sb.SMC(num_particles=300, num_runs=8),
        sb.NUTS(num_warmup=300, num_samples=300, num_chains=8),
    )
    found = [invariants(fit(probe, engine).tree) for engine in engines]
    assert len(found[0]) >= 2
    for name in found[0]:
        means = [np.asarray(each[name], float).mean(axis=1) for each in (found[0], found[1])]
        error = np.sqrt(sum(mean.var(axis=0, ddof=1) / len(mean) for mean in means))
        gap = np.abs(means[0].mean(axis=0) - means[1].mean(axis=0))
        assert (gap <= 6 * error + 1e-9).all(), name  # errors themselves are of 8 numbers each


@pytest.mark.parametrize("case", by_name(["counts", "hierarchical"]))
@pytest.mark.filterwarnings("ignore:clusters cannot be matched")  # means trade places
def test_log_evidence_is_a_sum_over_the_grid(case):
    """All labelings of linked rows summed, parameters on a grid."""
    model, held, given, options, sites, prior, terms = CASES[case]()
    points = np.concatenate([v.reshape(len(prior), -1) for v in sites.values()], axis=1)
    steps = [np.diff(np.unique(axis))[0] for axis in points.T]
    exact = logsumexp(prior + terms.sum(axis=1)) + np.log(steps).sum()
    engine = sb.SMC(num_particles=500, num_runs=8)
    found = sb.fit(holding(model, held), *given, engine=engine, progress=False, **options)
    assert found.log_evidence.standard_error < 0.1
    assert abs(found.log_evidence.value - exact) < 5 * found.log_evidence.standard_error
