"""A distribution that says of its events what its density does not bear out."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sidebayes as sb


class Series(dist.Distribution):
    """Autoregression of order one, all rows one event."""

    support = dist.constraints.real_vector

    def __init__(self, slope, event_shape):
        self.slope = slope
        super().__init__((), event_shape)

    def log_prob(self, value):
        return dist.Normal(self.slope * value[:-1], 1.0).log_prob(value[1:]).sum()


def model(y, *, event_shape):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("y", Series(slope, event_shape), obs=jnp.ravel(y))


def test_one_density_of_all_rows_needs_their_shape():
    y = np.sin(np.arange(20.0))[:, None]
    fit = sb.fit(model, y, event_shape=(20,), engine="laplace", progress=False)
    expected = (y[:-1] * y[1:]).sum() / (1 + (y[:-1] ** 2).sum())
    assert fit.params["slope"] == pytest.approx(expected, abs=0.2)
    with pytest.raises(ValueError, match=r"site 'y' has one log density for data of shape \(20,\)"):
        sb.fit(model, y, event_shape=(), engine="laplace", progress=False)
