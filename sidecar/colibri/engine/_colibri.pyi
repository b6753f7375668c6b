# The compiled extension; what it holds is declared by native/include/colibri.h.
from typing import Any

ffi: Any
lib: Any
