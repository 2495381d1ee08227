#!/bin/sh
# debian_packages.sh: what a build needs of the machine itself. Installs what is missing where it may (root on a
# Debian or Ubuntu), says what it does, and is silent where nothing is missing.
set -eu
say() { echo "bazelw: $*" >&2; }

missing=
need() { missing="$missing $*"; }
command -v gcc > /dev/null || command -v clang > /dev/null || need gcc
[ -e /usr/include/stdio.h ] || need libc6-dev
python=${PYTHON_BIN:-$(command -v python3.11 || command -v python3 || true)}
if [ -z "$python" ]; then
  need python3 python3-pip
elif ! "$python" -I -c 'import pip' 2> /dev/null; then
  need python3-pip
fi
command -v flock > /dev/null || need util-linux

# Bazel and the test libraries come out of apt's archive, which wants package lists.
lists() { ls /var/lib/apt/lists/*Packages* > /dev/null 2>&1; }
if [ -z "$missing" ] && { ! command -v apt-get > /dev/null || lists; }; then
  exit 0
fi
if ! command -v apt-get > /dev/null; then
  say "missing on this machine, and no apt-get to install it:$missing"
  exit 1
fi
if [ "$(id -u)" != 0 ]; then
  say "missing on this machine:${missing:- apt package lists}. Run this as root, then try again:"
  say "  apt-get update && apt-get install --yes --no-install-recommends$missing"
  exit 1
fi
log=$(mktemp)
if ! lists || [ -n "$missing" ]; then
  say "apt-get update (package lists are missing or old)"
  apt-get update --error-on=any > "$log" 2>&1 || { cat "$log" >&2; say "apt-get update failed: see above"; exit 1; }
fi
if [ -n "$missing" ]; then
  say "installing with apt-get:$missing"
  # shellcheck disable=SC2086  # a list
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $missing > "$log" 2>&1 ||
    { tail -n 20 "$log" >&2; say "apt-get install$missing failed: see above"; exit 1; }
fi
rm -f "$log"
