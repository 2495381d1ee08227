#!/bin/sh
# Make .venv for an editor or a plain pytest: the locked third-party packages, the generated protos and our own
# packages, importable in place. Run it again after a change of a proto or of the lock.
set -eu
runfiles=$PWD
cd "$BUILD_WORKSPACE_DIRECTORY"
[ -x .venv/bin/python ] || python3 -m venv .venv
echo "installing what tools/python/requirements_lock.txt pins into .venv ..."
.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r tools/python/requirements_lock.txt
rm -rf .gen
mkdir .gen
for folder in proto/orchestrator_py proto/snapshot_agent_py components/gpu-mock/kubernetes/kubelet_api_py; do
  cp -RL "$runfiles/$folder/." .gen/
done
chmod -R u+w .gen
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for folder in .gen components/client-py/src components/gpu-mock/kubernetes components/orchestrator \
  components/snapshot-agent examples; do
  echo "$PWD/$folder"
done > "$site/timeslice_dev.pth"
echo "done: .venv/bin/python; generated protos in .gen (point your editor at .venv)"
