"""Links of unknown reliability on iris: sixty pairs, a tenth of them stated wrongly."""

import sidebayes


def main() -> None:
    data = sidebayes.load_dataset("iris")
    links = sidebayes.simulate_links(data.labels, 60, flip_rate=0.1, weight=2.0)
    print(links)
    print(links.check(len(data.x), num_clusters=3))
    fits = {
        "no links": sidebayes.fit("gmm", data.x, num_clusters=3, truth=data.labels),
        "believed": sidebayes.fit(
            "ppc", data.x, links.hardened(), num_clusters=3, truth=data.labels
        ),
        "weighed": sidebayes.fit(
            "ppc",
            data.x,
            links,
            num_clusters=3,
            truth=data.labels,
            reading="relation",
            flip_rate="learned",
        ),
    }
    print(sidebayes.compare(fits))
    print(f"learned flip rate: {float(fits['weighed'].params['flip_rate']):.3f}")


if __name__ == "__main__":
    main()
