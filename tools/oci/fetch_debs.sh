#!/bin/sh
# fetch_debs.sh LOCK PRIVATE_APT: put the .deb files of a lock file here as NAME.deb, checked by sha256.
#
# Debian's mirrors keep only the newest version of a package. If a locked one is gone, the newest of the
# same suite is taken, with apt's check of Debian's signature, and named; with STRICT_DEBS=1 that is an error.
set -eu
lock=$1
suite=$(sed -n 's/^# suite //p' "$lock")
for tool in apt-get apt-cache sha256sum; do
  command -v "$tool" > /dev/null || {
    echo "The images are made of Debian packages, which takes $tool: build them on a Debian, or in a container of it." >&2
    exit 1
  }
done
sh "$2" "$PWD/apt" "$suite" > apt.log 2>&1 || {
  cat apt.log >&2
  echo "apt cannot read the package lists of Debian $suite. On another Debian-like system build in a container of Debian." >&2
  exit 1
}
export APT_CONFIG="$PWD/apt/conf"
relock="Run ./bazelw run //images:lock_debs and commit images/debs.lock."
apt-cache dumpavail | awk '/^Package:/{n=$2} /^Version:/{print n "=" $2}' > have
wanted=
gone=
while read -r name version _; do
  case $name in '' | '#') continue ;; esac
  if grep -qxF "$name=$version" have; then
    wanted="$wanted $name=$version"
  else
    wanted="$wanted $name"
    gone="$gone $name=$version"
  fi
done < "$lock"
if [ -n "$gone" ]; then
  echo "No longer in Debian $suite:$gone. The newest are taken instead. $relock"
  [ "${STRICT_DEBS:-}" != 1 ] || exit 1
fi
# shellcheck disable=SC2086  # a list
apt-get download -qq $wanted
for deb in *.deb; do
  name=${deb%%_*}
  sum=$(sha256sum "$deb" | cut -d' ' -f1)
  case "$gone " in
    *" $name="*) ;;
    *) awk -v name="$name" -v sum="$sum" '$1 == name && $3 == sum {f = 1} END {exit !f}' "$lock" || {
      echo "$deb has sha256 $sum, not that of the lock. $relock" >&2
      exit 1
    } ;;
  esac
  mv "$deb" "$name.deb"
done
rm -rf apt have
