#!/usr/bin/env bash
# Installs the programs that some tests use, where that needs no question: as root, with apt.
#
#   deploy/system-packages.sh chromium redis-server postgresql
#
# Elsewhere it does nothing and ends well: a test that misses its program skips and says so.
# Ends with status 1 when an installation was tried and failed.
set -euo pipefail

present() {
    case "$1" in
        chromium) command -v chromium || command -v chromium-browser || command -v google-chrome ;;
        redis-server) command -v redis-server ;;
        postgresql) command -v initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' ;;
        *) echo "expected chromium, redis-server or postgresql, given $1" >&2; exit 2 ;;
    esac >/dev/null
}

missing=()
for package in "$@"; do
    present "$package" || missing+=("$package")
done
if [ "${#missing[@]}" -eq 0 ] || [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    exit 0
fi

echo "Installing for the tests: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# RUNLEVEL=1: Debian's packages start no service of their own; the tests start throw-away ones.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    echo "could not install ${missing[*]}, the tests that need them will skip:" >&2
    tail -n 3 "$log" >&2
    exit 1
fi
