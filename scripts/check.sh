#!/usr/bin/env bash
# Every check but the tests: formatting, lints, licences and advisories, documentation.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

step 'cargo fmt --check'
cargo fmt --all --check

step 'cargo clippy'
cargo clippy --workspace --all-targets --quiet -- --deny warnings

step 'cargo deny check'
if command -v cargo-deny >/dev/null; then
    cargo deny --log-level warn check bans licenses sources
    # The advisories are a git repository of their own.
    if cargo deny --log-level error fetch db; then
        cargo deny --log-level warn check --disable-fetch advisories
    else
        echo 'skipped: the database of advisories cannot be reached from here'
    fi
else
    echo "skipped: cargo-deny is not installed ('make tools' installs it)"
fi

step 'cargo doc'
RUSTDOCFLAGS='--deny warnings' cargo doc --workspace --no-deps --document-private-items --quiet
