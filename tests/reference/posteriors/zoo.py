"""Posteriors of the zoo's cards with exact moments: those of `examples/comparing_engines.py`."""

from functools import partial

from .. import targets
from .known import KnownPosterior


def _exact(name):
    args, options = targets.posterior(name)
    known = targets.truth(name)
    truth = {key: (known.mean[key], sd) for key, sd in known.sd.items() if sd is not None}
    functionals = partial(targets.functionals, name)
    return KnownPosterior(
        args[0], args[1:], truth, "exact", options, functionals, known.log_evidence
    )


POSTERIORS = {name: partial(_exact, name) for name in targets.EXAMPLE.POSTERIORS}
