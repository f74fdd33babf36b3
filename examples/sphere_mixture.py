"""Iris on the sphere of a Gaussian kernel: principal geodesics, then mixtures with and without links."""

import argparse
from pathlib import Path

import sidebayes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("sphere_mixture.png"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    data = sidebayes.load_dataset("iris")
    analysis = sidebayes.KernelPGA(2)
    points = analysis.sphere_coordinates(analysis.fit_transform(data.x))
    links = sidebayes.simulate_links(data.labels, 30, weight=2.0, seed=options.seed)
    given = {"num_clusters": 3, "truth": data.labels, "seed": options.seed}
    fits = {
        "no links": sidebayes.fit("sphere_mixture", points, **given),
        "30 links": sidebayes.fit("sphere_mixture", points, links, reading="relation", **given),
        "von Mises-Fisher": sidebayes.fit(
            "sphere_mixture", points, family="von_mises_fisher", **given
        ),
    }
    for name, fit in fits.items():
        print(name, fit)
    print(sidebayes.compare(fits))
    fits["30 links"].plot().savefig(options.output, dpi=80)


if __name__ == "__main__":
    main()
