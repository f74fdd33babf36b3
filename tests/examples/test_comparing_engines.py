"""What the example of comparing engines claims, on the posterior with two modes."""

import numpy as np
import pytest

import sidebayes
from tests.reference.targets import EXAMPLE, truth

ENGINES = {
    "Laplace": sidebayes.Laplace(num_draws=500, num_restarts=4),
    "NUTS": sidebayes.NUTS(num_warmup=200, num_samples=300),
    "SMC": sidebayes.SMC(num_particles=500, num_runs=6, num_mutations=3),
}


@pytest.fixture(scope="module")
def fits():
    return EXAMPLE.run(EXAMPLE.two_modes(), ENGINES)


def test_the_table_tells_whom_to_distrust(fits):
    frame = sidebayes.compare(fits).frame
    # both by what a search finds beside their draws, before any comparison
    assert frame["trust"].to_dict() == {"Laplace": "no", "NUTS": "no", "SMC": "reference"}
    assert "a mode that draws missed" in fits["NUTS"].status.message
    assert frame.loc["NUTS", "rhat"] < 1.02
    assert frame.loc["NUTS", "divergences"] == 0
    assert set(frame["shift_of"][["Laplace", "NUTS"]]) <= {"theta[0]", "theta[1]"}


def test_the_reference_is_right(fits):
    known = truth("two_modes")
    found = fits["SMC"].log_evidence
    assert abs(found.value - known.log_evidence) < 4 * found.standard_error
    assert found.standard_error < 0.3
    # Laplace knows the mass of one mode only
    share = (1 + known.mean["sign"]) / 2
    assert fits["Laplace"].log_evidence.value == pytest.approx(
        known.log_evidence + np.log(share), abs=0.05
    )


def test_it_draws_every_engine(fits, tmp_path):
    from matplotlib.image import imread

    EXAMPLE.draw({"two_modes": fits}, tmp_path / "picture.png")
    picture = imread(tmp_path / "picture.png")
    assert min(picture.shape[:2]) > 300
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 50
