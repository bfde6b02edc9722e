#!/bin/sh
# Jars of the servers that tests start, and of what connects Spark to them, fetched by Maven and kept for all checkouts.
#   servers.sh fetch NAME    fetch what NAME needs unless it is there, and print the folder that holds it
#   servers.sh jars NAME     the same, and print its jars with commas between them, as `spark.jars` wants them
#   servers.sh install       install Maven where that is possible without asking, else say what to install
# NAME: kafka (a broker), connector (Spark reads and writes topics), delta (Delta tables on Spark 4.2), s3a (Spark's own files in
# S3), s3proxy (an S3 server), moto (another one, in Python: pip fetches it into a folder, for it does not go with the lock).
# The folders are in WATERSMEET_SERVERS, or else in the user's cache. Where Maven looks for artifacts is its own setting.
set -eu
. "$(dirname "$0")/privileged.sh"
python=${PYTHON:-python3}

# Version, and what is fetched: group:artifact:version[:classifier], one with a + with what it depends on; behind "python", what pip takes.
list() {
    case "$1" in
    kafka) echo 4.3.1 +org.apache.kafka:kafka_2.13:4.3.1 ;;
    connector)
        echo 4.2.0 org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \
            org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0 \
            org.apache.kafka:kafka-clients:3.9.2 org.apache.commons:commons-pool2:2.13.1
        ;;
    delta) echo 4.4.0 io.delta:delta-spark_4.2_2.13:4.4.0 io.delta:delta-storage:4.4.0 ;;
    s3a)
        # Of the SDK, the parts that it calls: all services together, which it asks for, are 600 MB.
        echo 3.5.0-2 org.apache.hadoop:hadoop-aws:3.5.0 software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1 \
            +software.amazon.awssdk:s3-transfer-manager:2.35.4 +software.amazon.awssdk:sts:2.35.4
        ;;
    s3proxy) echo 4.1.0 org.gaul:s3proxy:4.1.0:jar-with-dependencies ;;
    moto) echo "5.2.5-$($python -c 'import sys; print(sys.implementation.cache_tag)')" python moto[s3]==5.2.5 flask==3.1.3 flask-cors==6.0.5 ;;
    *)
        echo "servers: there is no $1; there are kafka, connector, delta, s3a, s3proxy and moto" >&2
        exit 2
        ;;
    esac
}

# A project that depends on what is wanted: Maven copies what that comes to.
project() {
    echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>watersmeet</groupId>'
    echo '<artifactId>servers</artifactId><version>1</version><packaging>pom</packaging><dependencies>'
    for artifact in "$@"; do
        IFS=: read -r group id version classifier <<END
${artifact#+}
END
        echo "<dependency><groupId>$group</groupId><artifactId>$id</artifactId><version>$version</version>"
        if [ -n "$classifier" ]; then echo "<classifier>$classifier</classifier>"; fi
        case "$artifact" in
        +*) ;;
        *) echo '<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>' ;;
        esac
        echo '</dependency>'
    done
    echo '</dependencies></project>'
}

fetch() {
    told=$(list "$1")
    # shellcheck disable=SC2086  # a line of words
    set -- "$1" $told
    name=$1 version=$2
    shift 2
    cache=${WATERSMEET_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/watersmeet/servers}
    folder=$cache/$name-$version
    if [ ! -d "$folder" ]; then
        if [ "$1" != python ] && ! command -v mvn >/dev/null 2>&1; then
            echo "servers: Maven fetches $name, and there is no mvn; install it (Debian: apt-get install maven)" >&2
            exit 1
        fi
        mkdir -p "$cache"
        unfinished=$(mktemp -d "$cache/.unfinished.XXXXXX")
        trap 'rm -rf "$unfinished"' EXIT
        trap 'exit 1' HUP INT TERM
        if [ "$1" = python ]; then
            shift
            if ! "$python" -m pip install --quiet --no-input --target "$unfinished/jars" "$@" >"$unfinished/log" 2>&1; then
                echo "servers: pip could not fetch $name: $(tail -n 1 "$unfinished/log")" >&2
                exit 1
            fi
        elif ! project "$@" >"$unfinished/pom.xml" || ! (
            cd "$unfinished" && mvn -B -q dependency:copy-dependencies -DoutputDirectory=jars -DincludeScope=runtime
        ) >"$unfinished/log" 2>&1; then
            echo "servers: Maven could not fetch $name: $(grep -m 1 ERROR "$unfinished/log" || tail -n 1 "$unfinished/log")" >&2
            exit 1
        fi
        # Whoever is first counts, and another that was at it at the same time has fetched the same.
        mv -T "$unfinished/jars" "$folder" 2>/dev/null || [ -d "$folder" ]
    fi
    echo "$folder"
}

case "${1:-}" in
fetch) fetch "$2" ;;
jars)
    folder=$(fetch "$2")
    find "$folder" -name '*.jar' | sort | paste -s -d , -
    ;;
install)
    command -v mvn >/dev/null 2>&1 && exit 0
    if can_install; then
        echo "setup: installing Maven, which fetches the servers that tests start"
        install_package maven || true
        command -v mvn >/dev/null 2>&1 && exit 0
    fi
    echo "note: no Maven was found, so tests against Kafka and S3 servers are skipped unless their jars are in the cache;" \
        "install it (Debian: apt-get install maven)" >&2
    ;;
*)
    echo "usage: servers.sh fetch|jars NAME, or servers.sh install" >&2
    exit 2
    ;;
esac
