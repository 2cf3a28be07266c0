#!/usr/bin/env bash
# Starts a real S3 server (versitygw) on this machine for the storage tests.
#
#   exports=$(tests/tools/s3_server.sh DIRECTORY) && eval "$exports"
#   ...
#   kill "$CAIRN_TEST_S3_PID"
#
# Keeps buckets under DIRECTORY and the binary under build/bin. Prints `export` lines for the
# endpoint, throw-away credentials and the server's PID. Exit code 3: no server could be had here,
# with one line that says why.
set -euo pipefail

version=v1.8.0
build_timeout_s=900
ready_timeout_s=20

unavailable() {
    echo "no S3 server: $1" >&2
    exit 3
}

if [[ $# -ne 1 ]]; then
    echo "usage: $0 DIRECTORY" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1/buckets" "$root/build/bin/versitygw-$version"
directory=$(cd "$1" && pwd)
bin=$root/build/bin/versitygw-$version
log=$directory/server.log

if [[ ! -x $bin/versitygw ]]; then
    command -v go >/dev/null || unavailable "Go is not installed"
    GOBIN=$bin timeout "$build_timeout_s" \
        go install "github.com/versity/versitygw/cmd/versitygw@$version" >"$log" 2>&1 ||
        unavailable "go install versitygw@$version failed: $(tail -n 1 "$log")"
fi

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
key=throw-away-key
secret=$(python3 -c 'import secrets; print(secrets.token_hex(16))')
ROOT_ACCESS_KEY=$key ROOT_SECRET_KEY=$secret \
    nohup "$bin/versitygw" --port "127.0.0.1:$port" --health /health --keep-alive --quiet \
    posix "$directory/buckets" >"$log" 2>&1 </dev/null &
pid=$!

deadline=$((SECONDS + ready_timeout_s))
until python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/health', timeout=2)" \
    2>/dev/null; do
    kill -0 "$pid" 2>/dev/null || unavailable "versitygw ended: $(tail -n 1 "$log")"
    if ((SECONDS >= deadline)); then
        kill "$pid"
        unavailable "versitygw did not answer within $ready_timeout_s s"
    fi
    sleep 0.2
done

cat <<EXPORTS
export AWS_ENDPOINT_URL=http://127.0.0.1:$port
export CAIRN_TEST_S3_ENDPOINT=http://127.0.0.1:$port
export AWS_ACCESS_KEY_ID=$key
export AWS_SECRET_ACCESS_KEY=$secret
export AWS_REGION=us-east-1
export AWS_DEFAULT_REGION=us-east-1
export CAIRN_TEST_S3_PID=$pid
EXPORTS
