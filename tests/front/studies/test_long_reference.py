"""References: two samplers that start apart have to agree."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sidebayes as sb
from tests.reference.posteriors import EXACT


def moments(fit):
    theta = fit.tree["posterior"]["theta"].to_numpy()
    return theta.mean(), theta.std(), 4 / np.sqrt(fit.convergence["ess"])


def flat_location(y):
    theta = numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(theta, 2.0), obs=y)


@pytest.mark.slow
def test_two_modes_are_found_from_the_prior(tmp_path):
    known = EXACT["two_signs"]()
    given = {"progress": False, **known.options}
    found = sb.reference(known.model, *known.data, ess=2000, seed=1, **given)
    assert found.tree["fit_info"].attrs["reference"] == (
        "SMC and nested sampling from the prior agree"
    )
    assert found.convergence["ess"] >= 2000
    (mean, sd), (ours, spread, error) = known.truth["theta"], moments(found)
    assert abs(ours - mean) < error * sd
    assert spread == pytest.approx(sd, rel=error)
    # fits are measured against it, also once it is stored
    found.save(tmp_path / "known.nc")
    stored = sb.load(tmp_path / "known.nc", model=known.model)
    nuts = sb.fit(known.model, *known.data, engine=sb.NUTS(num_samples=500), **given)
    assert nuts.verdict[0] == "bad"  # its chains are in two modes
    trust = sb.compare({"nuts": nuts, "known": stored}).frame["trust"]
    assert trust.to_dict() == {"nuts": "no", "known": "reference"}


def test_an_improper_prior_is_started_from_points_spread_out():
    y = np.array([[1.0], [3.0], [2.5], [0.5]])
    found = sb.reference(flat_location, y, ess=2000, seed=2, progress=False)
    assert "spread starts" in found.tree["fit_info"].attrs["reference"]
    mean, sd, error = moments(found)
    assert abs(mean - y.mean()) < error
    assert sd == pytest.approx(1.0, rel=error)


def test_a_reference_that_is_not_reached_is_refused():
    y = np.zeros((3, 1))
    with pytest.raises(sb.FitError, match=r"max_draws = 1000; 1.005 and 1e\+06|1000000 are asked"):
        sb.reference(flat_location, y, ess=1e6, max_draws=1000, progress=False)
    with pytest.raises(TypeError, match="engine cannot be given"):
        sb.reference(flat_location, y, engine="nuts")
    with pytest.raises(ValueError, match="ess"):
        sb.reference(flat_location, y, ess=0)
