"""The synthetic experiments of Ross and Dy (2013): mutual information against the number of links.

``python benchmarks/reproduce/trajectories.py`` prints a table; ``--quick`` takes 10 starts in place of 50.
The paper's curves (Fig. 3) are pictures without numbers; its authors' released notebook has the data.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import normalized_mutual_info_score

import sidebayes as sb

STEPS = 50


def data(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, float]]:
    """Outcomes, inputs, true curves, and the paper's parameters of a data set."""
    if name == "sinusoids":
        table = sb.simulate_sinusoids(seed=0)
        scales = {"length_scale": 0.005**-0.5, "amplitude": 1.0, "noise": 0.02**0.5}
        return table["y"].to_numpy(), table["x"].to_numpy(), table["curve"].to_numpy(), scales
    table = sb.simulate_helices(seed=0)
    scales = {"length_scale": 0.0005**-0.5, "amplitude": 1.0, "noise": 0.1**0.5}
    return table[["x", "y"]].to_numpy(), table["z"].to_numpy(), table["curve"].to_numpy(), scales


def draw_links(
    curve: np.ndarray, number: int, weight: float, seed: int, apart: np.ndarray | None
) -> sb.Links:
    """Random must-links within curves and cannot-links between them, half each.

    Given distances, must-links prefer distant pairs, with chances in proportion to the distance, and
    cannot-links close ones, in proportion to 1 / (distance + 0.1): the paper has such a preference and does
    not say how strong. Linked sets have four points at most, as in the paper; the engine here needs no
    such cap.
    """
    rng = np.random.default_rng(seed)
    first, second = np.triu_indices(len(curve), 1)
    same = curve[first] == curve[second]
    if apart is None:
        chance = np.ones(len(first))
    else:
        far = apart[first, second]
        chance = np.where(same, far, 1 / (far + 0.1))
    # two orders without replacement, of pairs within curves and between them
    turns = [
        iter(rng.choice(np.flatnonzero(kind), kind.sum(), replace=False, p=share / share.sum()))
        for kind, share in ((same, chance[same]), (~same, chance[~same]))
    ]
    owner, chosen = np.arange(len(curve)), []
    while len(chosen) < number:
        pair = next(turns[len(chosen) % 2])
        i, j = first[pair], second[pair]
        joined = np.where(np.isin(owner, owner[[i, j]]), owner[i], owner)
        if np.sum(joined == owner[i]) <= 4:
            owner = joined
            chosen.append(pair)
    pairs = np.column_stack([first[chosen], second[chosen]])
    return sb.Links.from_pairs(pairs, same[chosen], weight, len(curve))


def starts(
    name: str, number: int, weight: float, num_starts: int, *, biased: bool
) -> dict[str, float]:
    """What all starts found: each is a fit of its own, with links of its own."""
    y, inputs, curve, scales = data(name)
    table = np.column_stack([inputs, y])
    apart = squareform(pdist(table / table.std(axis=0))) if biased else None
    engine = sb.CoordinateAscent(num_restarts=1, max_steps=STEPS, tol=0.0, num_draws=1)
    found = []
    for seed in range(num_starts):
        links = draw_links(curve, number, weight, seed, apart) if number else None
        fit = sb.fit(
            "trajectories", y, inputs, links=links, num_clusters=20, engine=engine, seed=seed,
            progress=False, **scales,
        )  # fmt: skip
        label = fit.labels()
        score = normalized_mutual_info_score(curve, label, average_method="geometric")
        broken = (
            0.0
            if links is None
            else np.mean(
                (label[links.pairs[:, 0]] == label[links.pairs[:, 1]]) != (links.weights > 0)
            )
        )
        occupied = np.sum(np.bincount(label, minlength=20) > 0.02 * len(label))
        bound = np.nanmax(fit.objective)
        found.append((score, occupied == 2, broken, bound))
    score, two, broken, bound = np.array(found).T
    return {
        "mean": score.mean(),
        "sd": score.std(),
        "two": two.mean(),
        "broken": broken.mean(),
        "best": score[np.argmax(bound)] if number == 0 else np.nan,
    }


def main(num_starts: int) -> None:
    """Print the table."""
    print(f"{num_starts} starts; NMI with the geometric mean; linked sets of 4 at most")
    print(
        "data       pairs   log-odds  links   NMI (sd)      two curves  links broken  NMI of the best bound"
    )
    for name, settings in {
        "sinusoids": [(0, 1.0), (20, 1.0), (60, 1.0), (20, 10.0), (60, 10.0)],
        "helices": [(0, 1.0), (100, 1.0), (50, 10.0), (100, 10.0)],
    }.items():
        for number, weight in settings:
            for biased in (False, True) if number else (False,):
                got = starts(name, number, weight, num_starts, biased=biased)
                best = f"{got['best']:.3f}" if number == 0 else ""
                drawn = ("biased" if biased else "even") if number else ""
                print(
                    f"{name:10} {drawn:7} {weight if number else 0:8.0f} {number:6d}   {got['mean']:.3f} "
                    f"({got['sd']:.2f}) {got['two']:12.2f} {got['broken']:12.1%}  {best}",
                    flush=True,
                )


if __name__ == "__main__":
    main(10 if "--quick" in sys.argv else 50)
