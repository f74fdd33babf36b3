"""A Swiss roll laid flat with the uncertainty of every position, and what a few links change.

Run: python examples/geodesic_embedding.py [--out docs/methods/geodesic_embedding.png]
"""

import argparse
from pathlib import Path

import numpy as np

import sidebayes as sb

NUMBER = 400
GRAPH = {"num_neighbors": 6, "num_landmarks": 60}
"""So that no edge of the graph joins two turns of the roll."""


def rolled(number, seed=0):
    """Rows of a Swiss roll."""
    along, across = np.random.default_rng(seed).random((2, number))
    turn = 1.5 * np.pi * (1 + 2 * along)
    return np.column_stack([turn * np.cos(turn), 21 * across, turn * np.sin(turn)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("geodesic_embedding.png"))
    options = parser.parse_args()
    x = rolled(NUMBER)
    given = {**GRAPH, "engine": sb.Laplace(num_restarts=2), "progress": False}
    plain = sb.fit("geodesic_embedding", x, **given)
    map_of = plain.positions()
    ends = map_of["position_0"].argsort().to_numpy()
    pairs = np.column_stack([ends[:8], ends[-8:]])
    links = sb.Links(pairs, np.full(8, np.inf))
    told = sb.fit("geodesic_embedding", x, links, **given)

    def apart(table):
        where = table[["position_0", "position_1"]].to_numpy()
        return np.linalg.norm(where[pairs[:, 0]] - where[pairs[:, 1]], axis=1).mean()

    print(f"mean deviation of a coordinate: {map_of[['sd_0', 'sd_1']].to_numpy().mean():.2f}")
    print(
        f"linked ends: {apart(map_of):.1f} apart without links, {apart(told.positions()):.1f} with"
    )
    new = plain.place(rolled(3, seed=1))
    print("new points:", new.round(2).to_string(), sep="\n")
    plain.plot().savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
