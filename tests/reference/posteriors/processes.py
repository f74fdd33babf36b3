"""Gaussian processes of posteriordb."""

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .known import Draws, KnownPosterior, entries, moments_of, published

HALF_T = dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 36.0))


def _whitened(at, rho, alpha, g, xp):
    """Latent function: the Cholesky factor of its covariance times white noise."""
    apart = (at[:, None] - at) ** 2
    covariance = alpha**2 * xp.exp(-apart / (2 * rho**2)) + 1e-10 * xp.eye(len(at))
    return (xp.linalg.cholesky(covariance) @ g[..., None])[..., 0]


def poisson_process(counts: Annotated[ArrayLike, "rows"], *, at):
    """Counts whose log rate is a Gaussian process."""
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    g = numpyro.sample("g", dist.Normal(0.0, 1.0).expand([len(at)]).to_event(1))
    rate = jnp.exp(_whitened(at, rho, alpha, g, jnp))
    numpyro.sample("counts", dist.Poisson(rate), obs=counts)


def accelerations(y: Annotated[ArrayLike, "rows"], *, basis, roots, spread_basis, spread_roots):
    """Mean and log standard deviation are processes of few basis functions."""

    def curve(basis, roots, name, location, scale):
        intercept = numpyro.sample(f"Intercept{name}", dist.StudentT(3.0, location, scale))
        amplitude = numpyro.sample(f"sdgp{name}_1", HALF_T)
        length = numpyro.sample(f"lscale{name}_1", dist.InverseGamma(1.124909, 0.0177))
        z = numpyro.sample(f"zgp{name}_1", dist.Normal(0.0, 1.0).expand([len(roots)]).to_event(1))
        weight = amplitude * jnp.sqrt(jnp.sqrt(2 * jnp.pi) * length)
        return intercept + basis @ (weight * jnp.exp(-((length * roots) ** 2) / 4) * z)

    mean = curve(basis, roots, "", -13.0, 36.0)
    log_spread = curve(spread_basis, spread_roots, "_sigma", 0.0, 10.0)
    numpyro.sample("y", dist.Normal(mean, jnp.exp(log_spread)), obs=y)


def _poisson():
    record = published("gp_pois_regr-gp_pois_regr")
    at = np.asarray(record["data"]["x"], float)

    def functionals(draws: Draws):
        rho, alpha = (draws[name][..., None, None] for name in ("rho", "alpha"))
        latent = _whitened(at, rho, alpha, draws["g"], np)
        return entries({"rho": draws["rho"], "alpha": draws["alpha"], "f": latent})

    data = (np.asarray(record["data"]["k"], float),)
    known = moments_of(record)
    return KnownPosterior(poisson_process, data, known, "published draws", {"at": at}, functionals)


def _accelerations():
    record = published("mcycle_gp-accel_gp")
    data = {key: np.asarray(value, float) for key, value in record["data"].items()}
    options = {
        "basis": data["Xgp_1"],
        "roots": data["slambda_1"].ravel(),
        "spread_basis": data["Xgp_sigma_1"],
        "spread_roots": data["slambda_sigma_1"].ravel(),
    }
    known = moments_of(record)
    return KnownPosterior(accelerations, (data["Y"],), known, "published draws", options)


POSTERIORS = {
    "gp_pois_regr-gp_pois_regr": _poisson,
    "mcycle_gp-accel_gp": _accelerations,
}
