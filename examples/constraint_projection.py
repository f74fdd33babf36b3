"""Two rings from sixty pairs: kernel principal components, then clusters in two features of them.

After Law (2006), section 5.6.3, on rings of our own.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy.spatial.distance import pdist
from sidebayes.diagnostics.pictures.colours import INK, cluster_colours, new_figure
from sidebayes.diagnostics.trust.scores import accuracy, violated_links
from sklearn.cluster import SpectralClustering
from sklearn.decomposition import KernelPCA

import sidebayes
from sidebayes import Continuation


def simulate_rings(size=100, seed=0):
    """Points on rings of radius 0.2 and 0.45, and the ring each is on."""
    rng = np.random.default_rng(seed)
    ring = np.repeat([0, 1], size)
    angle = rng.uniform(0, 2 * np.pi, 2 * size)
    radius = np.where(ring, 0.45, 0.2) + 0.03 * rng.normal(size=2 * size)
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1), ring


def kernel_gamma(x):
    """Of the kernel whose width is the distance that a fifth of all pairs fall below."""
    return 1 / (2 * np.percentile(pdist(x), 20) ** 2)


def fit_rings(x, links, engine):
    """Fit in two features of twenty kernel principal components.

    Returns
    -------
    fit : Fit
    kernel : KernelPCA
        Its features, divided by their deviation over the data, are what was fitted.
    """
    kernel = KernelPCA(20, kernel="rbf", gamma=kernel_gamma(x))
    features = kernel.fit_transform(x)
    fit = sidebayes.fit(
        "constraint_projection",
        features / features.std(axis=0),
        links,
        num_clusters=2,
        num_extracted=2,
        engine=engine,
        progress=False,
    )
    return fit, kernel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("constraint_projection.png"))
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--price", type=float, default=100.0, help="of a pair, in nats")
    parser.add_argument("--starts", type=int, default=8)
    options = parser.parse_args()

    x, ring = simulate_rings()
    links = sidebayes.simulate_links(ring, options.pairs).with_strength(options.price)
    fit, kernel = fit_rings(x, links, Continuation(num_restarts=options.starts, tol=1e-6))
    spectral = SpectralClustering(2, gamma=kernel_gamma(x), random_state=0).fit_predict(x)
    x_new, ring_new = simulate_rings(seed=1)
    scale = kernel.transform(x).std(axis=0)
    predicted = fit.predict(kernel.transform(x_new) / scale)
    broken = violated_links(fit.labels(), links.pairs, links.weights)
    print(f"spectral clustering    accuracy {accuracy(ring, spectral):.3f}")
    print(
        f"constraint_projection  accuracy {accuracy(ring, fit.labels()):.3f}, held out "
        f"{accuracy(ring_new, predicted):.3f}, links broken {broken} of {len(links)}"
    )
    white = (kernel.transform(x) / scale - fit.params["center"]) @ fit.params["whitening"]
    pictures = {
        "spectral clustering": (x, spectral),
        "constraint_projection": (x, fit.labels()),
        "the two features": (white @ fit.params["projection"], fit.labels()),
    }
    figure, axes = new_figure(9.0, 3.2, ncols=3)
    for axis, (title, (points, labels)) in zip(axes, pictures.items(), strict=True):
        axis.scatter(*points.T, s=9, color=cluster_colours(2)[labels], linewidth=0)
        axis.set_title(title, fontsize=10, color=INK, loc="left")
    figure.savefig(options.output, dpi=110)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
