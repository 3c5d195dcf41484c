"""The names of the paper's methods, without torch: recipes and the command line check them before torch
loads.

    real            I * W + b                                          exactly torch's own layer
    binaryconnect   I * sign(W) + b                                    Courbariaux et al. 2015
    bnn             sign(I) * sign(W) + b                              Courbariaux et al. 2016
    xnor            (sign(I) * sign(W)) . alpha [. K] + b              Rastegari et al. 2016, Eq. 2
    xnor++          (sign(I) * sign(W)) . Gamma + b                    Bulat and Tzimiropoulos 2019, Eq. 3

`Binarization.preset(name)` is what each of them means.
"""

from __future__ import annotations

METHODS = ("real", "binaryconnect", "bnn", "xnor", "xnor++")
"""The names of the paper's methods, which recipes and `Binarization.preset` take.

Example:
    >>> from xnorpp.nn import METHODS
    >>> METHODS
    ('real', 'binaryconnect', 'bnn', 'xnor', 'xnor++')
"""
# The methods whose layers take the sign of their input.
BINARY_INPUT_METHODS = ("bnn", "xnor", "xnor++")
