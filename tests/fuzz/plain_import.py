"""Makes `import colibri` read the sources directly, so that atheris can instrument them.

An editable install puts its own finder before Python's, and code that such a finder loads stays
without instrumentation: the fuzzer would then see no coverage and only throw random bytes.
Importing this module removes that finder, after it has found the compiled extension, which only it
knows and some of what is fuzzed imports. Import it before `atheris.instrument_imports`. Fuzz
targets only.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_EXTENSION = "colibri.engine._colibri"

importlib.import_module(_EXTENSION)
for name in tuple(sys.modules):
    if name.split(".")[0] == "colibri" and name != _EXTENSION:
        del sys.modules[name]
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sidecar"))
