#!/bin/bash
# Builds the programs of a real Kubernetes control plane from the Go modules beside this script
# and prints one line "NAME=PATH" for each, on standard output; everything else goes to standard error.
#
#   build.sh [NAME...]     NAME: etcd kube-apiserver kube-controller-manager helm kubectl
#
# Without names it gives the first four, and kubectl where none is on PATH.
# A program is taken from $KUBEBUILDER_ASSETS if it is there, else from the cache
# ${FAIRLEAD_CACHE:-~/.cache/fairlead}/bin/<module>-<version>/, where it is built at first use.
# A cached program appears by rename, so it is always whole; a lock keeps two callers from building twice.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${FAIRLEAD_CACHE:-${HOME:?HOME and FAIRLEAD_CACHE are both unset}/.cache/fairlead}/bin

say() { echo "build.sh: $*" >&2; }
fail() { say "$*"; exit 1; }

# The version that a module of ours requires, read from its go.mod, so that it stands in one place.
version_of() { # module-directory module-path
  awk -v m="$2" '$1 == "require" && $2 == m { print $3; exit }' "$here/$1/go.mod"
}
kubernetes=$(version_of kubernetes k8s.io/kubernetes)
etcd=$(version_of etcd go.etcd.io/etcd/server/v3)
helm=$(version_of helm helm.sh/helm/v4)
[ -n "$kubernetes" ] && [ -n "$etcd" ] && [ -n "$helm" ] || fail "no version found in $here/*/go.mod"

module_of() {
  case $1 in
    kube-apiserver | kube-controller-manager | kubectl) echo kubernetes ;;
    etcd | helm) echo "$1" ;;
    *) fail "unknown program '$1': expected etcd, kube-apiserver, kube-controller-manager, helm or kubectl" ;;
  esac
}
package_of() {
  case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    helm) echo helm.sh/helm/v4/cmd/helm ;;
    *) echo "k8s.io/kubernetes/cmd/$1" ;;
  esac
}
# Without these a Kubernetes program calls itself v0.0.0-master and clients disable features for it.
ldflags_of() {
  case $1 in
    kubernetes)
      local minor=${kubernetes#v1.} p
      for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        printf -- '-X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=%s ' "$p" "$kubernetes" "$p" "$p" "${minor%%.*}"
      done ;;
    helm) printf -- '-X helm.sh/helm/v4/internal/version.version=%s' "$helm" ;;
  esac
}

cached() { echo "$cache/$(module_of "$1")-${!2}/$1"; }

# Where a program is, or nothing when it has to be built.
find_program() {
  local path
  if [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$KUBEBUILDER_ASSETS/$1" ]; then
    echo "$KUBEBUILDER_ASSETS/$1"
    return
  fi
  path=$(cached "$1" "$(module_of "$1")")
  if [ -x "$path" ]; then echo "$path"; fi
}

# Builds what is missing of one module.
build_module() { # module NAME...
  local module=$1 directory temporary started name missing=() packages=()
  shift
  directory=$cache/$module-${!module}
  mkdir -p "$directory"
  exec 9>"$directory/.lock"
  flock -n 9 || { say "waiting for another build of $module"; flock 9; }
  for name; do
    [ -x "$directory/$name" ] || { missing+=("$name"); packages+=("$(package_of "$name")"); }
  done
  if [ ${#missing[@]} -gt 0 ]; then
    command -v go >/dev/null || fail "building ${missing[*]} needs Go; install it or set KUBEBUILDER_ASSETS"
    say "building ${missing[*]} ${!module} (once; minutes on a small machine)"
    started=$SECONDS
    temporary=$(mktemp -d "$directory/.build.XXXXXX")
    trap 'rm -rf "$temporary"' EXIT
    for ((i = 0; i < ${#missing[@]}; i++)); do
      # etcd's main package is called "server" by its path, so each program gets its name here.
      (cd "$here/$module" && CGO_ENABLED=0 GOFLAGS="-mod=readonly -buildvcs=false" nice go build -trimpath \
        -ldflags "-s -w $(ldflags_of "$module")" -o "$temporary/${missing[i]}" "${packages[i]}") 9>&- >&2
      mv "$temporary/${missing[i]}" "$directory/${missing[i]}"
    done
    rm -rf "$temporary"
    trap - EXIT
    say "built ${missing[*]} in $((SECONDS - started)) s"
  fi
  exec 9>&-
}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  names=(etcd kube-apiserver kube-controller-manager helm)
  command -v kubectl >/dev/null || names+=(kubectl)
fi

declare -A wanted=()
for name in "${names[@]}"; do
  module=$(module_of "$name")
  if [ -z "$(find_program "$name")" ]; then wanted[$module]+="$name "; fi
done
for module in etcd kubernetes helm; do
  # Unquoted on purpose: program names hold no blanks.
  if [ -n "${wanted[$module]:-}" ]; then build_module "$module" ${wanted[$module]}; fi
done
for name in "${names[@]}"; do
  path=$(find_program "$name")
  [ -n "$path" ] || fail "$name was built but is not in $cache"
  echo "$name=$path"
done
