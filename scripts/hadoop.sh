#!/usr/bin/env bash
# Fetches the jars of Hadoop's HDFS once, pinned, into the cache outside the
# checkout. Maven resolves and verifies them from Maven Central.
set -euo pipefail
version=3.4.2
plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1
dir="${XDG_CACHE_HOME:-$HOME/.cache}/commitstep/hadoop-$version-hdfs"
[ -e "$dir/.complete" ] && exit 0
for tool in java mvn; do
  command -v "$tool" >/dev/null 2>&1 || { echo "hadoop: $tool is missing; scripts/setup.sh installs it" >&2; exit 1; }
done

echo "hadoop: fetching Hadoop $version (65 MB)" >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
artifacts=""
for a in hadoop-common hadoop-hdfs hadoop-hdfs-client; do
  artifacts+="<dependency><groupId>org.apache.hadoop</groupId><artifactId>$a</artifactId><version>$version</version></dependency>"
done
cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>com.github.commitstep</groupId>
  <artifactId>hadoop-for-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>$artifacts</dependencies>
</project>
POM
rm -rf "$dir"
mkdir -p "$dir"
mvn -B -q -f "$work/pom.xml" "$plugin:copy-dependencies" -DincludeScope=runtime "-DoutputDirectory=$dir/lib"
touch "$dir/.complete"
