"""What the command line refuses before it takes time."""

from typer.testing import CliRunner

import sidebayes
from sidebayes.cli import app


def test_the_number_of_known_classes_is_checked_before_the_source_is_fitted(monkeypatch):
    def fit_source(*_, **__):
        raise AssertionError("the source was fitted first")

    monkeypatch.setattr(sidebayes, "fit_source", fit_source)
    call = ["fit", "domain_adaptation", "iris", "--source", "iris", "--num-known", "0"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 2
    assert "--num-known 0: 150 classes are known; give 1 to 150" in result.stderr
