"""A Gaussian mixture on iris: full and tied covariances side by side."""

import sidebayes


def main() -> None:
    data = sidebayes.load_dataset("iris")
    fits = {
        covariance: sidebayes.fit(
            "gmm", data.x, num_clusters=3, covariance=covariance, truth=data.labels
        )
        for covariance in ("full", "tied")
    }
    for name, fit in fits.items():
        print(name, fit)
    print(sidebayes.compare(fits))
    print("log density of the first three flowers:", fits["full"].log_prob(data.x[:3]))


if __name__ == "__main__":
    main()
