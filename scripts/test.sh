#!/usr/bin/env bash
# Runs every test with the race detector, then a short run of every fuzz
# target. Fails when a test failed or was skipped: on a machine that was set
# up, nothing has a reason to be skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${XDG_CACHE_HOME:-$HOME/.cache}/commitstep"
export COMMITSTEP_TEST_PYTHON="${COMMITSTEP_TEST_PYTHON:-$cache/python-avro-1.12.0/bin/python}"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
# One Hadoop for all packages; it ends with this script.
CGO_ENABLED=1 go run ./internal/hadoopkit/hadoop run go test -race -count=1 -timeout 40m -v ./... >"$log" 2>&1 || status=$?
grep -E '^(ok|FAIL|panic:|\?)|^ *--- (FAIL|SKIP)|no test files' "$log" | grep -v 'no test files' || true
if [ "$status" -ne 0 ]; then
  echo "---- output of the packages that failed ----"
  # The last lines hold the failures; the whole log can be megabytes.
  grep -vE '^ *(=== (RUN|PAUSE|CONT|NAME)|--- PASS)' "$log" | tail -n 400
  exit "$status"
fi
if grep -qE '^ *--- SKIP' "$log"; then
  echo "test: some tests were skipped:"
  grep -E -A2 '^ *--- SKIP' "$log"
  exit 1
fi
scripts/fuzz.sh
