#!/usr/bin/env bash
# Installs PgBouncer for the tests that go through it, where the machine lets it.
#
# Does nothing where it is installed. Exit code 3: it is not to be had here, with one line that says
# why; those tests are then skipped.
set -euo pipefail

install_timeout_s=300

unavailable() {
    echo "no PgBouncer: $1" >&2
    exit 3
}

PATH=$PATH:/usr/sbin
if command -v pgbouncer >/dev/null; then
    exit 0
fi
command -v apt-get >/dev/null || unavailable "it is not installed, and there is no apt-get"
[[ $EUID -eq 0 ]] || unavailable "it is not installed; install Debian's package pgbouncer"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Its service does not start: the tests run their own.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
{
    timeout "$install_timeout_s" apt-get update &&
        timeout "$install_timeout_s" apt-get install --yes --no-install-recommends pgbouncer
} >"$log" 2>&1 || unavailable "apt-get install pgbouncer failed: $(tail -n 1 "$log")"
command -v pgbouncer >/dev/null || unavailable "the package has no pgbouncer"
