#!/usr/bin/env bash
# Runs every test with the race detector, then a short run of every fuzz
# target. Fails when a test failed or was skipped: on a machine that was set
# up, nothing has a reason to be skipped. PACKAGES="./store/... ./driver" runs
# the tests of these only, and no fuzz targets.
#
# Tests mount small file systems and act as several users, so they need root.
# Any other user gets there through sudo, with the own environment, and owns
# afterwards what the run left in the caches and in the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "test: tests that mount small file systems or act as another user need root, and there is no sudo: run this as root, or install sudo; \`go test ./...\` runs the others and skips these" >&2
    exit 1
  fi
  # env sets what sudo would take away.
  keep=()
  while read -r name; do
    case "$name" in
    PATH | HOME | LANG | LC_* | TZ | TMPDIR | XDG_* | GO* | CGO_* | CC | CXX | COMMITSTEP_* | FUZZTIME | PACKAGES | JAVA_HOME | MAVEN_* | \
      HTTP_PROXY | HTTPS_PROXY | NO_PROXY | http_proxy | https_proxy | no_proxy | SSL_CERT_FILE | SSL_CERT_DIR)
      keep+=("$name=${!name}") ;;
    esac
  done < <(compgen -e)
  # Made here, these and those above them belong to this user.
  mine=("$PWD" "$(go env GOCACHE)" "$(go env GOMODCACHE)" "${XDG_CACHE_HOME:-$HOME/.cache}/commitstep" "${XDG_CONFIG_HOME:-$HOME/.config}/go")
  mkdir -p "${mine[@]}"
  since=$(mktemp)
  # Only what this run made: files that were root's before stay root's.
  give_back() {
    sudo find "${mine[@]}" -user root -cnewer "$since" -exec chown -h "$(id -u):$(id -g)" {} + || true
    rm -f "$since"
  }
  trap give_back EXIT
  status=0
  sudo env "${keep[@]}" scripts/test.sh || status=$?
  exit "$status"
fi

cache="${XDG_CACHE_HOME:-$HOME/.cache}/commitstep"
export COMMITSTEP_TEST_PYTHON="${COMMITSTEP_TEST_PYTHON:-$cache/python-avro-1.12.0/bin/python}"

read -ra packages <<<"${PACKAGES:-./...}"
run=()
# One Hadoop for all packages that use it, and one Hive, which comes up while the
# first packages are built and tested; both end with this script.
uses=$(go list -test -deps "${packages[@]}")
if grep -q '/internal/hadoopkit$' <<<"$uses"; then
  run=(go run ./internal/hadoopkit/hadoop run)
fi
if grep -q '/internal/hivekit$' <<<"$uses"; then
  run+=(go run ./internal/hivekit/hive run)
fi

# It prints a line per package as it ends, and behind the last all that each failed
# test said, and what was skipped.
gotestsum=gotest.tools/gotestsum@v1.13.0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
CGO_ENABLED=1 "${run[@]}" go run "$gotestsum" --format standard-quiet --jsonfile "$log" -- \
  -race -count=1 -timeout 40m "${packages[@]}" || status=$?
if [ "$status" -ne 0 ]; then
  echo "test: these failed:"
  grep -oE '"Output":" *--- FAIL: [^"\\]*' "$log" | cut -d'"' -f4 || true
  exit "$status"
fi
if grep -q '"Action":"skip","Package":"[^"]*","Test":' "$log"; then
  echo "test: some tests were skipped, see above; on a machine that is set up none has a reason to be" >&2
  exit 1
fi
if [ "${packages[*]}" = "./..." ]; then
  scripts/fuzz.sh
fi
