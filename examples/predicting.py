"""Predict: a subject that was seen a few times, one that was not, and data like those that were seen.

Run: python examples/predicting.py [--out docs/predicting.png]
"""

import argparse
from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from sidebayes.diagnostics.pictures.colours import CHAINS, INK, MUTED, new_figure
from sidebayes.models.blocks.effects.densities.random_effects import RandomEffects

import sidebayes as sb


def growth(
    height: Annotated[ArrayLike, "rows"],
    age: Annotated[ArrayLike, "rows"],
    child: Annotated[sb.Groups, "rows"],
):
    """Children grow along lines of their own, integrated out."""
    design = jnp.stack([jnp.ones_like(age), age - 6.0], axis=1)
    line = numpyro.sample("line", dist.Normal(jnp.array([115.0, 6.0]), 10.0).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(jnp.array([10.0, 2.0])).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    outcome = RandomEffects(design @ line, design, child, scale_tril=jnp.diag(spread), noise=noise)
    numpyro.sample("height", outcome, obs=height)


def measure(num_children=20, seed=0):
    """Simulated heights: most children are seen from two to ten, Ada up to the age of four only."""
    rng = np.random.default_rng(seed)
    names = np.array(["Ada", *(f"child {number}" for number in range(1, num_children))])
    visits = rng.integers(3, 8, num_children)
    visits[0] = 3
    child = np.repeat(np.arange(num_children), visits)
    age = np.where(child == 0, rng.uniform(2, 4, len(child)), rng.uniform(2, 10, len(child)))
    own = rng.normal([115.0, 6.3], [4.0, 0.5], (num_children, 2))
    own[0] = 122.0, 6.9
    height = own[child, 0] + own[child, 1] * (age - 6.0) + 0.8 * rng.normal(size=len(child))
    return height, age, names[child]


def fit(data, engine):
    """Fit the model of the children."""
    return sb.fit(growth, *data, engine=engine, progress=False)


def predict(found, child, ages):
    """Heights of a child at ages: draws of shape (draws, ages)."""
    drawn = found.predictive(age=ages, child=[child] * len(ages))["predictions"]["height"]
    return drawn.stack(sample=("chain", "draw")).transpose("sample", ...).to_numpy()


def draw(found, data, out):
    """A child that was seen, one that was not, and the distribution of replicated data."""
    height, age, child = data
    ages = np.linspace(2, 10, 33)
    figure, axes = new_figure(9.5, 3.0, ncols=3)
    for axis, name, colour in zip(axes, ("Ada", "a child not seen"), CHAINS, strict=False):
        low, below, middle, above, high = np.quantile(
            predict(found, name, ages), [0.05, 0.25, 0.5, 0.75, 0.95], axis=0
        )
        axis.plot(age, height, ".", color=MUTED, ms=3, alpha=0.5)
        axis.fill_between(ages, low, high, color=colour, alpha=0.2, lw=0)
        axis.fill_between(ages, below, above, color=colour, alpha=0.3, lw=0)
        axis.plot(ages, middle, color=colour)
        axis.plot(age[child == name], height[child == name], "o", color=INK, ms=4)
        axis.set(title=name, xlabel="age in years", ylabel="height in cm", ylim=(80, 155))
    again = found.predictive()
    drawn = again["posterior_predictive"]["height"].stack(sample=("chain", "draw"))
    levels = (np.arange(len(height)) + 0.5) / len(height)
    for number in range(0, drawn.sizes["sample"], drawn.sizes["sample"] // 50):
        axes[2].step(np.sort(drawn[:, number]), levels, color=CHAINS[2], lw=0.6, alpha=0.3)
    axes[2].step(np.sort(again["observed_data"]["height"]), levels, color=INK, lw=1.2)
    axes[2].set(title="replicates, and the data", xlabel="height in cm", ylabel="share below")
    figure.savefig(out, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("predicting.png"))
    out = parser.parse_args().out
    data = measure()
    found = fit(data, sb.NUTS())
    print(found)
    for name in ("Ada", "a child not seen"):
        drawn = predict(found, name, [10.0])[:, 0]
        print(f"{name} at ten: {drawn.mean():.0f} cm, give or take {drawn.std():.1f}")
    draw(found, data, out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
