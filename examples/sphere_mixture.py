"""Clusters of iris on the sphere of a Gaussian kernel: principal geodesics, then a mixture with links."""

import sidebayes


def main() -> None:
    data = sidebayes.load_dataset("iris")
    analysis = sidebayes.KernelPGA(3)
    points = analysis.sphere_coordinates(analysis.fit_transform(data.x))
    links = sidebayes.simulate_links(data.labels, 40, weight=2.0)
    fits = {
        "no links": sidebayes.fit("sphere_mixture", points, num_clusters=3, truth=data.labels),
        "40 soft links": sidebayes.fit(
            "sphere_mixture", points, links, num_clusters=3, reading="relation", truth=data.labels
        ),
        "von Mises-Fisher": sidebayes.fit(
            "sphere_mixture",
            points,
            num_clusters=3,
            family="von_mises_fisher",
            truth=data.labels,
        ),
    }
    for name, fit in fits.items():
        print(name, fit)
    print(sidebayes.compare(fits))


if __name__ == "__main__":
    main()
