"""Two features with four clusters, eight of noise: which matter, and how many clusters there are.

After Law (2006), section 4.4.1. The picture is that of `fit.plot()` on draws from the sparse prior.
"""

import argparse
from pathlib import Path

import numpy as np

import sidebayes

MEANS = np.array([(0.0, 3.0), (1.0, 9.0), (6.0, 4.0), (7.0, 10.0)])


def rows(number, seed=0):
    """Rows of four Gaussians in two features, and eight features of noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=number)
    x = np.concatenate([MEANS[labels], np.zeros((number, 8))], axis=1)
    return x + rng.normal(size=x.shape), labels


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--out", default="feature_saliency.png")
    options = parser.parse_args()
    x, _ = rows(options.points)
    names = ["east", "north", *(f"noise {k}" for k in range(1, 9))]
    given = {"feature_names": names, "progress": False}
    shortest = sidebayes.fit("feature_saliency", x, num_clusters=12, **given)
    print(shortest.status, shortest.features().sentence, sep="\n")
    engine = sidebayes.BlockedGibbs(num_samples=options.draws)
    drawn = sidebayes.fit(
        "feature_saliency", x, num_clusters=6, selection="sparse", engine=engine, **given
    )
    print(drawn.features())
    drawn.plot().savefig(Path(options.out), dpi=110)


if __name__ == "__main__":
    main()
