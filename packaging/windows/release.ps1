# Builds and tries the release for Windows. Not run yet, see docs/releases.md.
# Needs clang (of MSYS2), Python 3.11 or newer and Node 20.19 or newer on the path.
$ErrorActionPreference = "Stop"
Set-Location (Join-Path $PSScriptRoot "../..")

foreach ($tool in "clang", "python", "npm") {
    if (-not (Get-Command $tool -ErrorAction SilentlyContinue)) {
        throw "release: $tool is not on the path"
    }
}

# A program that fails does not stop PowerShell by itself.
function Invoke-Step([scriptblock] $Step) {
    & $Step
    if ($LASTEXITCODE -ne 0) { throw "release: '$Step' ended with $LASTEXITCODE" }
}

$Python = "build/release/env/Scripts/python.exe"
Invoke-Step { python -m venv build/release/env }
Invoke-Step { & $Python -m pip install --quiet --require-hashes --no-deps -r requirements/release.lock }
Invoke-Step { npm --prefix frontend ci --silent --no-audit --no-fund }
Invoke-Step { npm --prefix frontend run --silent build }
$env:PYTHONPATH = "packaging"
Invoke-Step { & $Python -m release.build }
$Archives = Get-ChildItem build/release/out -Filter *.zip | ForEach-Object { $_.FullName }
Invoke-Step { & $Python packaging/smoke @Archives }
