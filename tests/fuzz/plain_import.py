"""Makes `import colibri` read the sources directly, so that atheris can instrument them.

An editable install puts its own finder before Python's, and code that such a finder loads stays
without instrumentation: the fuzzer would then see no coverage and only throw random bytes.
Importing this module removes that finder; the targets need nothing of the compiled extension.
Import it before `atheris.instrument_imports`. Fuzz targets only.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sidecar"))
