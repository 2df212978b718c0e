#!/usr/bin/env bash
# Fetches the jars of a HiveServer2 with its metastore and Tez once, pinned, into
# the cache outside the checkout. Maven resolves and verifies them from Maven
# Central.
set -euo pipefail
hive=4.0.1
tez=0.10.4
pac4j=4.5.5 # without its classes there is no HTTP transport, whatever the authentication
hadoop=3.3.6 # the one that this Hive was built with; it talks to newer name nodes
plugin=org.apache.maven.plugins:maven-dependency-plugin:3.8.1
# The number is raised when the list below changes, so that old downloads are
# not taken for this one.
dir="${XDG_CACHE_HOME:-$HOME/.cache}/commitstep/hive-$hive-2"
[ -e "$dir/.complete" ] && exit 0
for tool in java mvn; do
  command -v "$tool" >/dev/null 2>&1 || { echo "hive: $tool is missing; scripts/setup.sh installs it" >&2; exit 1; }
done

echo "hive: fetching Hive $hive with Tez $tez (270 MB)" >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# dependency GROUP ARTIFACT VERSION EXCLUDED_GROUP:ARTIFACT...
dependency() {
  echo "<dependency><groupId>$1</groupId><artifactId>$2</artifactId><version>$3</version><exclusions>"
  local e
  for e in "${@:4}"; do
    echo "<exclusion><groupId>${e%:*}</groupId><artifactId>${e#*:}</artifactId></exclusion>"
  done
  echo "</exclusions></dependency>"
}

# Excluded: what logs a second time or brings a second, shaded Hadoop; what
# pac4j needs, of which one artifact is not on Maven Central; clients of clouds
# and of other databases, lineage, and a scripting language, which nothing here
# uses.
logging=(org.slf4j:slf4j-reload4j org.slf4j:slf4j-log4j12 log4j:log4j)
unused=(org.apache.hadoop:hadoop-client-api org.apache.hadoop:hadoop-client-runtime
  org.pac4j:* org.apache.atlas:* com.amazonaws.secretsmanager:* com.microsoft.sqlserver:*
  com.oracle.database.jdbc:* com.oracle.database.ha:* org.codehaus.groovy:groovy-all)
{
  echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
  echo '<groupId>com.github.commitstep</groupId><artifactId>hive-for-tests</artifactId><version>1</version><packaging>pom</packaging>'
  echo '<dependencies>'
  dependency org.apache.hive hive-service "$hive" "${logging[@]}" "${unused[@]}"
  dependency org.apache.hive hive-standalone-metastore-server "$hive" "${logging[@]}" "${unused[@]}"
  dependency org.pac4j pac4j-core "$pac4j" '*:*'
  dependency org.pac4j pac4j-saml-opensamlv3 "$pac4j" '*:*'
  dependency org.apache.tez tez-dag "$tez" "${logging[@]}"
  dependency org.apache.tez tez-mapreduce "$tez" "${logging[@]}"
  dependency org.apache.hadoop hadoop-mapreduce-client-core "$hadoop" "${logging[@]}"
  dependency org.apache.hadoop hadoop-hdfs "$hadoop" "${logging[@]}"
  echo '</dependencies></project>'
} >"$work/pom.xml"
rm -rf "$dir"
mkdir -p "$dir"
mvn -B -q -f "$work/pom.xml" "$plugin:copy-dependencies" -DincludeScope=runtime "-DoutputDirectory=$dir/lib"
touch "$dir/.complete"
