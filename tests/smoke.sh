#!/usr/bin/env bash
# Build the wheel and the source archive, install the wheel in a clean environment outside the
# checkout, and use it there. The environment borrows torch and the other dependencies from the
# Python that is given, instead of fetching them again.
#
#     tests/smoke.sh .venv/bin/python
set -euo pipefail

python=$(realpath -s "$1")
checkout=$(cd "$(dirname "$0")/.." && pwd)
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT

rm -rf "$checkout"/build/{lib,bdist.*}
"$python" -m build --no-isolation --outdir "$outside/dist" "$checkout" >"$outside/build.log" 2>&1 ||
    { cat "$outside/build.log" >&2; exit 1; }

"$python" -m venv --without-pip "$outside/venv"
clean="$outside/venv/bin"
"$python" -m pip -qq --disable-pip-version-check --python "$clean/python" \
    install --no-deps --no-index "$outside"/dist/*.whl
site=$("$clean/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/borrowed.pth"

cp "$checkout/tests/smoke.py" "$outside/smoke.py"
cd "$outside"
"$clean/python" smoke.py "$site" dist/*.tar.gz
"$clean/hpx" --help >/dev/null
"$clean/hpx-viz" --help >/dev/null
"$clean/hpx" passes >/dev/null
echo "the wheel works outside the checkout"
