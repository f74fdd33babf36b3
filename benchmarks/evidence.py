"""Whether stated errors of log evidences are honest: engines against exact evidences, seed by seed.

Run: python -m benchmarks.evidence [--seeds 20] [--engines SMC NUTS] [--posteriors ...]
Each line gives the mean error, in how many runs two standard errors cover the exact value, the root
mean square of errors in stated standard errors (1 where they are honest), the mean standard error, and
the seconds of arithmetic. Regressions are conjugate; the others are integrated by quadrature. NUTS has its
evidence from a bridge (`Fit.with_evidence`); runs that refuse one are not counted.
"""

import argparse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from scipy import integrate, stats
from sidebayes.guides.engines.base import Evidence

import sidebayes as sb

ENGINES = {"SMC": sb.SMC(), "NestedSlice": sb.NestedSlice(), "NUTS": sb.NUTS()}
ROWS, WIDE, NOISE = 40, 5.0, 1.0
PEAKS, SHARES, NARROW = np.array([-4.0, 4.0]), np.array([0.1, 0.9]), 0.3


@dataclass(frozen=True)
class Known:
    """A model with its data, and its log evidence."""

    model: Callable
    data: tuple[Any, ...]
    log_evidence: float


def _columns(rho: float, terms: int) -> np.ndarray:
    """Columns that all have correlation rho."""
    rng = np.random.default_rng(1)
    cover = np.full((terms, terms), rho) + (1 - rho) * np.eye(terms)
    return rng.normal(size=(ROWS, terms)) @ np.linalg.cholesky(cover).T


def regression(rho: float, terms: int = 6) -> Known:
    """Known noise and a normal prior of the coefficients."""
    x = _columns(rho, terms)
    y = x @ np.linspace(-1.0, 2.0, terms) + np.random.default_rng(2).normal(size=ROWS)

    def model(
        y: Annotated[ArrayLike, "rows"],
        x: Annotated[ArrayLike, "rows columns"],
    ) -> None:
        beta = numpyro.sample("beta", dist.Normal(0.0, WIDE).expand([terms]).to_event(1))
        with numpyro.plate("rows", ROWS):
            numpyro.sample("y", dist.Normal(jnp.asarray(x) @ beta, NOISE), obs=y)

    cover = WIDE**2 * x @ x.T + NOISE**2 * np.eye(ROWS)
    return Known(model, (y, x), float(stats.multivariate_normal(np.zeros(ROWS), cover).logpdf(y)))


def cauchy() -> Known:
    """A mean under a Cauchy prior, far from its centre."""
    y = np.random.default_rng(3).normal(20.0, 1.0, 10)

    def model(y: Annotated[ArrayLike, "rows"]) -> None:
        mean = numpyro.sample("mean", dist.Cauchy(0.0, 2.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    def density(mean: float) -> float:
        return np.exp(stats.norm(mean, 1.0).logpdf(y).sum() + 20.0) * stats.cauchy(0, 2).pdf(mean)

    return Known(model, (y,), float(np.log(integrate.quad(density, 10.0, 30.0)[0]) - 20.0))


def two_modes() -> Known:
    """Two narrow modes under a wide prior, of masses near 0.1 and 0.9, and a nuisance parameter."""

    def model(y: Annotated[ArrayLike, "rows"]) -> None:
        theta = numpyro.sample("theta", dist.Normal(0.0, 5.0))
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
        parts = jnp.log(SHARES) + dist.Normal(theta, NARROW).log_prob(jnp.asarray(PEAKS))
        numpyro.factor("peaks", jax.nn.logsumexp(parts))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    y = np.random.default_rng(4).normal(1.0, 1.0, 10)
    cover = 9.0 * np.ones((10, 10)) + np.eye(10)
    peaks = np.log(SHARES @ stats.norm(0.0, np.hypot(5.0, NARROW)).pdf(PEAKS))
    rest = stats.multivariate_normal(np.zeros(10), cover).logpdf(y)
    return Known(model, (y,), float(peaks + rest))


def vague(spread: float) -> Known:
    """Coefficients under a prior far wider than the noise, whose scale is unknown.

    Tempered posteriors are funnels.
    """
    x = np.random.default_rng(0).normal(size=(ROWS, 4))
    x[:, 0] = 1.0
    y = x @ [0.5, 1.0, 2.0, -1.0] + np.random.default_rng(1).normal(size=ROWS)

    def model(
        y: Annotated[ArrayLike, "rows"],
        x: Annotated[ArrayLike, "rows columns"],
    ) -> None:
        beta = numpyro.sample("beta", dist.Normal(0.0, spread).expand([4]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(WIDE))
        with numpyro.plate("rows", ROWS):
            numpyro.sample("y", dist.Normal(jnp.asarray(x) @ beta, noise), obs=y)

    def log_density(noise: float) -> float:
        cover = spread**2 * x @ x.T + noise**2 * np.eye(ROWS)
        normal = stats.multivariate_normal(np.zeros(ROWS), cover)
        return float(normal.logpdf(y) + stats.halfnorm(scale=WIDE).logpdf(noise))

    top = log_density(1.0)
    mass = integrate.quad(lambda noise: np.exp(log_density(noise) - top), 0.4, 3.0)[0]
    return Known(model, (y, x), float(np.log(mass) + top))


POSTERIORS: dict[str, Callable[[], Known]] = {
    "regression, rho = 0": lambda: regression(0.0),
    "regression, rho = 0.9": lambda: regression(0.9),
    "regression, rho = 0.99": lambda: regression(0.99),
    "regression, 20 terms": lambda: regression(0.5, 20),
    "vague prior": lambda: vague(100.0),
    "vaguer prior": lambda: vague(1000.0),
    "Cauchy prior": cauchy,
    "two modes": two_modes,
}


def evidence_of(fit: sb.Fit) -> Evidence | None:
    """The log evidence of an engine, or by a bridge from its draws; None where neither is known."""
    if fit.log_evidence is None:
        with suppress(ValueError, sb.FitError):
            fit = fit.with_evidence()
    return fit.log_evidence


def study(known: Known, engine: Any, seeds: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Errors of estimates of the log evidence, their standard errors, and the mean seconds of a run."""
    found, seconds = [], []
    for seed in range(seeds):
        fit = sb.fit(known.model, *known.data, engine=engine, seed=seed, progress=False)
        seconds.append(fit.seconds["run"])
        evidence = evidence_of(fit)
        if evidence is not None and evidence.kind == "estimate":  # bounds have no error
            found.append((evidence.value - known.log_evidence, evidence.standard_error))
    error, stated = np.array(found, float).reshape(-1, 2).T
    return error, stated, float(np.mean(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--posteriors", nargs="*", default=list(POSTERIORS))
    asked = parser.parse_args()
    print(
        f"{'':<25}{'':<13}{'exact':>9}{'error':>8}{'covered':>9}{'rms z':>7}{'stated':>8}{'s':>7}"
    )
    for name in asked.posteriors:
        known = POSTERIORS[name]()
        for title in asked.engines:
            error, stated, seconds = study(known, ENGINES[title], asked.seeds)
            covered = int(np.sum(np.abs(error) <= 2 * stated))
            rms = np.sqrt(np.mean((error / stated) ** 2))
            print(
                f"{name:<25}{title:<13}{known.log_evidence:9.2f}{error.mean():8.2f}"
                f"{f'{covered}/{len(error)}':>9}{rms:7.2f}{stated.mean():8.2f}{seconds:7.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
