"""Leaves of two species that differ less than leaves of one do, told apart by links between them."""

import argparse
from pathlib import Path

import numpy as np

import sidebayes


def outline(width: float, blunt: float, rng: np.random.Generator) -> np.ndarray:
    """Sixteen landmarks along the edge of a leaf that somebody laid down as it came."""
    angle = 2 * np.pi * np.arange(16) / 16
    edge = np.stack([np.cos(angle), width * np.sin(angle) * (1 + blunt * np.cos(angle))], axis=1)
    turn = rng.uniform(0, 2 * np.pi)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    noise = rng.normal(scale=0.02, size=edge.shape)
    return rng.uniform(20, 60) * (edge + noise) @ rotation + rng.uniform(0, 500, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("hierarchical_shape.png"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    rng = np.random.default_rng(options.seed)
    species = np.repeat([0, 1], 25)
    blunt = np.where(species == 0, rng.normal(0.30, 0.05, 50), rng.normal(0.12, 0.05, 50))
    leaves = np.stack([outline(rng.normal(0.55, 0.08), one, rng) for one in blunt])
    marks = sidebayes.Landmarks.from_array(leaves)
    links = sidebayes.simulate_links(species, 25)
    given = {"num_clusters": 2, "num_modes": 4, "outline": "closed", "truth": species}
    for name, side in (("without links", None), ("with 25 links", links)):
        fit = sidebayes.fit("hierarchical_shape", marks, links=side, **given)
        right = np.mean(fit.labels() == species)
        print(f"{name}: {100 * max(right, 1 - right):.0f} % of the leaves with their species")
    share = fit.modes()["share"].sel(group="population")
    print("variance along the leading modes of all leaves:", share.to_numpy().round(2))
    drawn = sidebayes.fit(
        "hierarchical_shape", marks, links=links, engine="gibbs", init=fit, **given
    )
    drawn.plot().savefig(options.output, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
