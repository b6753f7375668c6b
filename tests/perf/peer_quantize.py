"""Makes a GGUF of another type with the peer's own quantizer; runs in the peer's environment.

    python -m tests.perf.peer_quantize SOURCE.gguf q4_0|q8_0 TARGET.gguf

Everything at the quantizer's defaults (which keep the token embedding, here also the output head,
at 8 bits); only requantizing is allowed, because the published file is quantized already.
"""

from __future__ import annotations

import sys

import llama_cpp

TYPES = {
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
}


def main() -> None:
    source, kind, target = sys.argv[1:4]
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = TYPES[kind]
    params.allow_requantize = True
    code = llama_cpp.llama_model_quantize(source.encode(), target.encode(), params)
    if code != 0:
        raise SystemExit(f"the peer's quantizer returned {code}")


if __name__ == "__main__":
    main()
