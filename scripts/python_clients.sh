#!/usr/bin/env bash
# Make .venv/ with the Python packages that the integration tests use; do nothing if it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/requirements-installed.txt
if ! cmp -s scripts/requirements.txt "$stamp"; then
    python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement scripts/requirements.txt
    cp scripts/requirements.txt "$stamp"
fi
