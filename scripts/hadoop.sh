#!/usr/bin/env bash
# Fetches the jars of Hadoop once, pinned, into the cache outside the checkout:
# those of HDFS, and those with YARN, MapReduce and Streaming besides, which only
# processes that need them are started with. Maven resolves and verifies them
# from Maven Central.
set -euo pipefail
version=3.4.2
plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1
cache="${XDG_CACHE_HOME:-$HOME/.cache}/commitstep"

# fetch NAME ARTIFACT...
fetch() {
  local dir="$cache/hadoop-$version-$1" dependencies="" a
  [ -e "$dir/.complete" ] && return
  for a in java mvn; do
    command -v "$a" >/dev/null 2>&1 || { echo "hadoop: $a is missing; scripts/setup.sh installs it" >&2; exit 1; }
  done
  echo "hadoop: fetching Hadoop $version, $1" >&2
  for a in "${@:2}"; do
    dependencies+="<dependency><groupId>org.apache.hadoop</groupId><artifactId>$a</artifactId><version>$version</version></dependency>"
  done
  cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>com.github.commitstep</groupId>
  <artifactId>hadoop-for-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>$dependencies</dependencies>
</project>
POM
  rm -rf "$dir"
  mkdir -p "$dir"
  mvn -B -q -f "$work/pom.xml" "$plugin:copy-dependencies" -DincludeScope=runtime "-DoutputDirectory=$dir/lib"
  touch "$dir/.complete"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hdfs=(hadoop-common hadoop-hdfs hadoop-hdfs-client)
fetch hdfs "${hdfs[@]}"
# The resource manager does not start without the timeline service's classes,
# although that service is off.
fetch yarn "${hdfs[@]}" hadoop-yarn-server-resourcemanager hadoop-yarn-server-nodemanager hadoop-yarn-server-timelineservice \
  hadoop-mapreduce-client-app hadoop-mapreduce-client-jobclient hadoop-mapreduce-client-shuffle hadoop-streaming
