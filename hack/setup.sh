#!/usr/bin/env bash
# Makes sure that this machine has the programs that the repository's tools call.
#
#   setup.sh run     for demo and up
#   setup.sh test    for the tests as well
#
# What Debian has is installed with apt, if we are root and something is missing. Rust and Go are not: which version
# and from where is the owner's choice. Not being able to install is an error only where nothing works without.
set -euo pipefail

purpose=${1:?usage: setup.sh run|test}
case $purpose in run | test) ;; *) echo "setup.sh: unknown purpose '$purpose': expected run or test" >&2; exit 1 ;; esac

say() { echo "setup.sh: $*" >&2; }
has() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }

# Without these nothing works.
missing=()
has cargo || missing+=("Rust: https://rustup.rs (rust-toolchain.toml names the version)")
has go || [ -n "${KUBEBUILDER_ASSETS:-}" ] || missing+=("Go 1.26 or later: https://go.dev/dl (it builds the control plane)")
if [ ${#missing[@]} -gt 0 ]; then
  for what in "${missing[@]}"; do say "missing: $what"; done
  exit 1
fi

# Program, the Debian package it is in, what it is for.
wanted="
cc build-essential linking
unshare util-linux nodes
flock util-linux nodes
git git tidy
"
if [ "$purpose" = test ]; then
  wanted+="
linux.uml user-mode-linux the-kernel-guest
python3 python3 zizmor-and-model-servers
pip3 python3-pip zizmor-and-model-servers
"
fi
packages=()
while read -r program package use; do
  [ -n "$program" ] || continue
  has "$program" || { packages+=("$package"); say "missing: $program (for $use)"; }
done <<<"$wanted"
[ ${#packages[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ]; then
  say "not root, so it is not installed; as root: apt-get install ${packages[*]}"
  exit 0
fi
if ! has apt-get; then
  say "there is no apt-get here; install what carries these Debian packages: ${packages[*]}"
  exit 0
fi
say "installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --yes --quiet=2 --no-install-recommends "${packages[@]}" </dev/null >&2; }
install || { apt-get update --quiet=2 >&2 && install; }
