"""Small posteriors with a difficulty each, whose moments are exact or found by quadrature."""

from itertools import product
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from scipy import stats
from scipy.special import logsumexp

from .known import KnownPosterior, on_grid

ROWS = Annotated[ArrayLike, "rows"]
TABLE = Annotated[ArrayLike, "rows predictors"]


def _schools(y: ROWS, *, error, scale):
    """Effects about a common mean, centred: a funnel where the data allow no variance."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(scale))
    with numpyro.plate("rows", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, error), obs=y)


def _effects(y, error, scale):
    """Effects and mean are normal given tau, which is integrated on a grid of its logarithm."""
    log_tau = np.linspace(np.log(1e-6), np.log(scale * 1e5), 20_001)
    tau = np.exp(log_tau)
    variance = error**2 + tau[:, None] ** 2
    precision = (1 / variance).sum(axis=1) + 1 / 25.0
    centre = (y / variance).sum(axis=1) / precision
    log_weight = stats.halfcauchy(scale=scale).logpdf(tau) + log_tau
    log_weight += stats.norm.logpdf(y, 0.0, np.sqrt(variance)).sum(axis=1)
    # the mean integrated out, by its density at zero before and after
    log_weight += stats.norm.logpdf(0.0, 0.0, 5.0)
    log_weight -= stats.norm.logpdf(0.0, 0.0, precision**-0.5) - precision * centre**2 / 2
    pull = 1 / (1 + error**2 / tau[:, None] ** 2)
    given = {
        "mu": (centre, 1 / precision),
        "tau": (np.minimum(tau, 100.0), np.zeros_like(tau)),
    }
    shrunk = pull * y + (1 - pull) * centre[:, None]
    spread = pull * error**2 + (1 - pull) ** 2 / precision[:, None]
    given |= {f"theta[{i + 1}]": (shrunk[:, i], spread[:, i]) for i in range(len(y))}
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    truth = {}
    for name, (mean, within) in given.items():
        first = weight @ mean
        truth[name] = float(first), float(np.sqrt(weight @ (within + mean**2) - first**2))
    evidence = log_weight.max() + np.log(
        np.trapezoid(np.exp(log_weight - log_weight.max()), log_tau)
    )
    return truth, float(evidence)


def _cut_tau(draws):
    """The tail of tau is so heavy that its variance is infinite; it is cut at 100."""
    found = {"mu": draws["mu"], "tau": np.minimum(draws["tau"], 100.0)}
    theta = np.moveaxis(draws["theta"], -1, 0)
    return found | {f"theta[{i + 1}]": values for i, values in enumerate(theta)}


def eight_schools():
    """The eight schools, centred (Rubin 1981; Gelman et al. 2013, section 5.5)."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    return _hierarchy(y, error, 5.0)


def no_variance():
    """Nine effects that hardly differ: much mass lies near a variance of zero."""
    y = np.array([0.3, -0.2, 0.5, 0.1, -0.4, 0.0, 0.2, -0.1, 0.4])
    return _hierarchy(y, np.ones(9), 1.0)


def _hierarchy(y, error, scale):
    truth, evidence = _effects(y, error, scale)
    options = {"error": error, "scale": scale}
    return KnownPosterior(_schools, (y,), truth, "quadrature", options, _cut_tau, evidence)


def _bent(y: ROWS):
    first = numpyro.sample("first", dist.Normal(0.0, 1.0))
    second = numpyro.sample("second", dist.Normal(0.0, 3.0))
    numpyro.sample("y", dist.Normal(second - first**2, 0.1), obs=y)


def banana():
    """One parameter is nearly the square of another."""

    def log_density(first, second):
        prior = stats.norm.logpdf(first) + stats.norm.logpdf(second, 0.0, 3.0)
        return prior + stats.norm.logpdf(0.0, second - first**2, 0.1)

    axes = {"first": np.linspace(-5, 5, 1001), "second": np.linspace(-1, 20, 4201)}
    return _gridded(_bent, (np.zeros(1),), log_density, axes)


def _squared(y: ROWS):
    theta = numpyro.sample("theta", dist.Normal(0.3, 2.0))
    numpyro.sample("y", dist.Normal(theta**2, 1.0), obs=y)


def two_signs():
    """Two modes, of masses .61 and .39: the square of a parameter is seen."""
    y = np.full(2, 9.0)

    def log_density(theta):
        return stats.norm.logpdf(theta, 0.3, 2.0) + 2 * stats.norm.logpdf(9.0, theta**2, 1.0)

    return _gridded(_squared, (y,), log_density, {"theta": np.linspace(-6, 6, 24_001)})


def _positive(y: ROWS):
    rate = numpyro.sample("rate", dist.HalfNormal(2.0))
    numpyro.sample("y", dist.Normal(rate, 1.0), obs=y)


def boundary():
    """The density is highest where a positive parameter is zero."""

    def log_density(rate):
        return stats.halfnorm(scale=2.0).logpdf(rate) + 2 * stats.norm.logpdf(-1.0, rate, 1.0)

    axes = {"rate": np.linspace(0, 8, 80_001)}
    return _gridded(_positive, (np.full(2, -1.0),), log_density, axes)


def _chance(y: ROWS):
    chance = numpyro.sample("chance", dist.Beta(0.5, 0.5))
    numpyro.sample("y", dist.Normal(chance, 2.0), obs=y)


def two_poles():
    """Nearly Beta(.5, .5), which is infinite at both ends; on the grid of its arc it is smooth."""

    def log_density(arc):
        return np.log(2 / np.pi) + stats.norm.logpdf(0.6, np.sin(arc) ** 2, 2.0)

    arc = {"arc": np.linspace(0, np.pi / 2, 10_001)}
    functionals = {"chance": lambda arc: np.sin(arc) ** 2}
    truth, evidence = on_grid(log_density, arc, functionals)
    data = (np.array([0.6]),)
    return KnownPosterior(_chance, data, truth, "quadrature", log_evidence=evidence)


def _slopes(columns: TABLE, y: ROWS):
    beta = numpyro.sample("beta", dist.Normal(0.0, 3.0).expand([columns.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(columns @ beta, 1.0), obs=y)


def _conjugate(correlation, size, num_rows=25):
    """Regression of known variance on columns of one correlation: normal, in closed form."""
    rng = np.random.default_rng(11)
    shared = rng.normal(size=(num_rows, 1))
    own = rng.normal(size=(num_rows, size))
    columns = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    y = columns @ np.linspace(-1, 1, size) + rng.normal(size=num_rows)
    covariance = np.linalg.inv(columns.T @ columns + np.eye(size) / 9.0)
    mean, sd = covariance @ columns.T @ y, np.sqrt(np.diag(covariance))
    truth = {f"beta[{i + 1}]": (float(mean[i]), float(sd[i])) for i in range(size)}
    cover = np.eye(num_rows) + 9.0 * columns @ columns.T
    evidence = float(stats.multivariate_normal(np.zeros(num_rows), cover).logpdf(y))
    return KnownPosterior(_slopes, (columns, y), truth, "exact", log_evidence=evidence)


def mild_regression():
    """Ten slopes, hardly correlated."""
    return _conjugate(0.1, 10)


def collinear():
    """Four slopes, whose columns correlate by .99."""
    return _conjugate(0.99, 4)


def _tailed(y: ROWS):
    theta = numpyro.sample("theta", dist.StudentT(2.0, 0.0, 1.0))
    numpyro.sample("y", dist.StudentT(1.0, theta, 3.0), obs=y)


def heavy_tails():
    """Both prior and reading have heavy tails; the inverse hyperbolic sine is compared."""

    def log_density(bent):
        theta = np.sinh(bent)
        reading = stats.t(1).logpdf((8.0 - theta) / 3.0) - np.log(3.0)
        return stats.t(2).logpdf(theta) + reading + np.log(np.cosh(bent))

    axes = {"bent": np.linspace(-16, 16, 40_001)}
    truth, evidence = on_grid(log_density, axes, {"asinh theta": lambda bent: bent})
    return KnownPosterior(
        _tailed,
        (np.array([8.0]),),
        truth,
        "quadrature",
        functionals=lambda draws: {"asinh theta": np.arcsinh(draws["theta"])},
        log_evidence=evidence,
    )


def _components(y: ROWS, *, num_components):
    """The mixture that a beginner writes: no plate called clusters, weights known."""
    with numpyro.plate("K", num_components):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    share = dist.Categorical(probs=jnp.full(num_components, 1 / num_components))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(share, dist.Normal(mu, 1.0)), obs=y)


def _switching(num_components, y):
    """Every labeling weighed; given the labels the means are independent and normal."""
    labels = np.array(list(product(range(num_components), repeat=len(y))))
    member = labels[..., None] == np.arange(num_components)
    count, total = member.sum(axis=1), np.einsum("ljk,j->lk", member, y)
    precision = count + 1 / 9.0
    mean, variance = total / precision, 1 / precision
    log_weight = -len(y) * (np.log(num_components) + np.log(2 * np.pi) / 2) - (y @ y) / 2
    log_weight = log_weight + (np.log(variance / 9.0) + total * mean).sum(axis=1) / 2
    share = np.exp(log_weight - logsumexp(log_weight))
    first = mean.sum(axis=1)
    square = (mean**2 + variance).sum(axis=1)
    # variance of the square of a normal variable, given the labels
    within = (2 * variance**2 + 4 * mean**2 * variance).sum(axis=1)
    truth = {}
    for name, (middle, spread) in {
        "sum": (first, variance.sum(axis=1)),
        "sum of squares": (square, within),
    }.items():
        centre = share @ middle
        truth[name] = float(centre), float(np.sqrt(share @ (spread + middle**2) - centre**2))
    return KnownPosterior(
        _components,
        (y,),
        truth,
        "exact",
        {"num_components": num_components},
        lambda d: {"sum": d["mu"].sum(axis=-1), "sum of squares": (d["mu"] ** 2).sum(axis=-1)},
        float(logsumexp(log_weight)),
    )


def two_components():
    """Two clusters that overlap, so that samplers go from one numbering to the other."""
    return _switching(2, np.array([-1.4, -0.9, -0.6, 0.2, 0.5, 1.2, 1.5, 1.9]))


def three_components():
    """Three clusters far enough apart for a chain to stay with one numbering."""
    return _switching(3, np.array([-4.2, -3.5, -0.3, 0.4, 3.3, 3.9, 4.4]))


def _product(y: ROWS):
    one = numpyro.sample("one", dist.HalfNormal(3.0))
    two = numpyro.sample("two", dist.HalfNormal(3.0))
    numpyro.sample("y", dist.Normal(one * two, 0.3), obs=y)


def ridge():
    """Only the product of two parameters is seen."""

    def log_density(one, two):
        prior = stats.halfnorm(scale=3.0)
        return prior.logpdf(one) + prior.logpdf(two) + stats.norm.logpdf(2.0, one * two, 0.3)

    nodes = np.geomspace(1e-4, 15, 1501)
    return _gridded(_product, (np.array([2.0]),), log_density, {"one": nodes, "two": nodes})


def _spike(y: TABLE, *, away, narrow, share):
    """A narrow mode far out under the prior, beside a wide one near its centre."""
    size = y.shape[1]
    theta = numpyro.sample("theta", dist.Normal(0.0, 3.0).expand([size]).to_event(1))
    centres = jnp.stack([theta, theta - away])
    spreads = jnp.array([1.0, narrow])[:, None] * jnp.ones(size)
    parts = dist.Normal(centres, spreads).to_event(1)
    mixing = dist.Categorical(probs=jnp.array([1 - share, share]))
    numpyro.sample("y", dist.MixtureSameFamily(mixing, parts), obs=y)


def rare_mode():
    """Four dimensions; the mode with most of the mass is one that the prior hardly reaches."""
    size, narrow, share = 4, 0.2, 0.99
    away = np.full(size, 4.0)
    log_weight, centres, variances = [], [], []
    for part, at, spread in ((1 - share, 0.0, 1.0), (share, away[0], narrow)):
        cover = 9.0 + spread**2
        log_weight.append(np.log(part) + size * stats.norm.logpdf(at, 0.0, np.sqrt(cover)))
        centres.append(9.0 * at / cover)
        variances.append(9.0 * spread**2 / cover)
    weight = np.exp(log_weight - logsumexp(log_weight))
    mean = weight @ centres
    sd = np.sqrt(weight @ (np.array(variances) + np.square(centres)) - mean**2)
    truth = {f"theta[{i + 1}]": (float(mean), float(sd)) for i in range(size)}
    options = {"away": away, "narrow": narrow, "share": share}
    evidence = float(logsumexp(log_weight))
    data = (np.zeros((1, size)),)
    return KnownPosterior(_spike, data, truth, "exact", options, log_evidence=evidence)


def _counts(y: ROWS):
    rate = numpyro.sample("rate", dist.Gamma(0.5, 1.0))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def no_events():
    """Three counts of zero: a rate with a pole at zero, conjugate."""
    truth = {"rate": (0.125, float(np.sqrt(0.5) / 4))}
    evidence = float(-0.5 * np.log(4.0))
    return KnownPosterior(_counts, (np.zeros(3),), truth, "exact", log_evidence=evidence)


def _gridded(model, data, log_density, axes):
    functionals = {name: lambda *at, i=i: at[i] for i, name in enumerate(axes)}
    truth, evidence = on_grid(log_density, axes, functionals)
    return KnownPosterior(model, data, truth, "quadrature", log_evidence=evidence)


POSTERIORS = {
    one.__name__: one
    for one in (
        eight_schools,
        no_variance,
        banana,
        two_signs,
        boundary,
        two_poles,
        mild_regression,
        collinear,
        heavy_tails,
        two_components,
        three_components,
        ridge,
        rare_mode,
        no_events,
    )
}
