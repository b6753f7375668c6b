#!/bin/bash
# Builds and tries the release for macOS: Colibri.app and the server alone. Not run yet, see docs/releases.md.
# Needs the command line tools of Xcode, Python 3.11 or newer and Node 20.19 or newer.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v clang >/dev/null || { echo "release: the command line tools are missing: xcode-select --install" >&2; exit 1; }
command -v npm >/dev/null || { echo "release: Node 20.19 or newer is needed for the dashboard" >&2; exit 1; }

python3 -m venv build/release/env
build/release/env/bin/python -m pip install --quiet --require-hashes --no-deps -r requirements/release.lock
npm --prefix frontend ci --silent --no-audit --no-fund
npm --prefix frontend run --silent build
PYTHONPATH=packaging build/release/env/bin/python -m release.build
build/release/env/bin/python packaging/smoke build/release/out/*.zip
