"""The benches are scripts; tests of their parts import them as they import one another."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
