"""Building blocks that models share: side information, label inference, components."""

import numpyro

# ArviZ, when imported first, leaves a lazy stand-in for numpyro, and importing a submodule through
# it gives a broken one; reading an attribute loads the package itself.
_ = numpyro.__version__
