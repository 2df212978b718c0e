#!/usr/bin/env bash
# A short run of every fuzz target of the module; FUZZTIME is the time of each.
set -euo pipefail
cd "$(dirname "$0")/.."
time="${FUZZTIME:-5s}"
found=0
while IFS=: read -r file target; do
  found=$((found + 1))
  echo "fuzz: $target in ./$(dirname "$file") for $time"
  go test -run '^$' -fuzz "^${target}\$" -fuzztime "$time" "./$(dirname "$file")" | grep -E '^(ok|FAIL|---|panic)|Failing' || exit 1
done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -oE '^func (Fuzz[A-Za-z0-9_]*)' /dev/null | sed -E 's/:func /:/')
if [ "$found" -eq 0 ]; then
  echo "fuzz: no targets found" >&2
  exit 1
fi
