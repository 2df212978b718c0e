#!/usr/bin/env bash
# Installs what the tests need and a fresh Debian machine with Go lacks: a C
# compiler for the race detector, strace, PostgreSQL and PgBouncer, Java and
# Maven with the jars of Hadoop and Hive, and Python with a second Avro reader.
# Downloads are cached outside the checkout, so a second run is fast.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=()
need() { command -v "$1" >/dev/null 2>&1 || packages+=("$2"); }
need gcc gcc
need strace strace
need python3 python3
need java openjdk-17-jre-headless
need mvn maven
# Servers that the tests start themselves: their programs are looked for where
# Debian puts them, since they are not in everybody's PATH.
servers=()
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null 2>&1 || servers+=(postgresql)
[ -x /usr/sbin/pgbouncer ] || command -v pgbouncer >/dev/null 2>&1 || servers+=(pgbouncer)
packages+=("${servers[@]}")
[ -e /usr/include/stdlib.h ] || packages+=(libc6-dev)
# The module alone is not enough: pip comes with python3-venv on Debian.
python3 -c 'import ensurepip' >/dev/null 2>&1 || packages+=(python3-venv)

if [ ${#packages[@]} -gt 0 ]; then
  sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
      echo "setup: the tests need these Debian packages: ${packages[*]}; install them as root, or install sudo" >&2
      exit 1
    fi
    sudo=(sudo)
  fi
  echo "setup: installing ${packages[*]}" >&2
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  if [ ${#servers[@]} -gt 0 ]; then
    # The packages would make a cluster and start services; the tests bring
    # their own, and a machine that is set up for tests should run nothing else.
    if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
      "${sudo[@]}" mkdir -p /etc/postgresql-common
      echo "create_main_cluster = false" | "${sudo[@]}" tee /etc/postgresql-common/createcluster.conf >/dev/null
    fi
    if [ ! -e /usr/sbin/policy-rc.d ]; then
      printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee /usr/sbin/policy-rc.d >/dev/null
      "${sudo[@]}" chmod 755 /usr/sbin/policy-rc.d
      trap '"${sudo[@]}" rm -f /usr/sbin/policy-rc.d' EXIT
    fi
  fi
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold "${packages[@]}" >/dev/null
fi

scripts/hadoop.sh
scripts/hive.sh

# A second, independent Avro reader, pinned.
cache="${XDG_CACHE_HOME:-$HOME/.cache}/commitstep"
venv="$cache/python-avro-1.12.0"
if [ ! -e "$venv/.complete" ]; then
  echo "setup: installing the Python package avro 1.12.0" >&2
  rm -rf "$venv"
  mkdir -p "$cache"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check avro==1.12.0
  touch "$venv/.complete"
fi

go mod download
