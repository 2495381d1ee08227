#!/bin/sh
# Write images/debs.lock: "name version sha256" of the newest of each package that images/debs.txt names.
set -eu
apt=$PWD/tools/apt/private_apt.sh
cd "$BUILD_WORKSPACE_DIRECTORY/images"
suite=$(sed -n 's/^# suite //p' debs.txt)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "reading the package lists of Debian $suite ..." >&2
sh "$apt" "$work" "$suite" > "$work/log" 2>&1 || {
  cat "$work/log" >&2
  exit 1
}
names=$(sed 's/#.*//' debs.txt)
{
  echo "# suite $suite"
  # shellcheck disable=SC2086  # a list
  LC_ALL=C APT_CONFIG=$work/conf apt-cache show --no-all-versions $names |
    awk '/^Package:/{n=$2} /^Version:/{v=$2} /^SHA256:/{print n, v, $2}' | LC_ALL=C sort
} > "$work/lock"
for name in $names; do
  cut -d' ' -f1 "$work/lock" | grep -qxF "$name" || {
    echo "Debian $suite has no package $name" >&2
    exit 1
  }
done
diff debs.lock "$work/lock" && echo "debs.lock is up to date" >&2
cp "$work/lock" debs.lock
