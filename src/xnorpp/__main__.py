"""`python -m xnorpp`, also what torchrun starts: `torchrun --nproc-per-node 4 -m xnorpp train ...`."""

from __future__ import annotations

import sys

from xnorpp.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
