#!/bin/sh
# First process of the kernel guest; `xtask::guest` starts it. It mounts what a node has, runs one command and powers
# the guest off.
#
# FAIRLEAD_GUEST_DIR comes from the kernel's command line, which hands words it does not know on to the first process.
# It is a directory of the host with `command`, the script to run; `output` and `exit-code` are left beside it. Answers
# go by files and not by the console, so that no message of the kernel can stand in the middle of one.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root

power_off() {
  sync
  echo o >/proc/sysrq-trigger
  # The power goes a moment later; if this process ended before, the kernel would panic.
  while :; do sleep 1; done
}

must() {
  "$@" && return
  echo "guest: failed: $*"
  power_off
}

must mount -t proc proc /proc
must mount -t sysfs sysfs /sys
must mount -t cgroup2 cgroup2 /sys/fs/cgroup
# The root group may hold processes and still hand its controllers on.
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
  must sh -c "echo +$controller >/sys/fs/cgroup/cgroup.subtree_control"
done
# What runs here must not write its state to the host's disk, and sockets need a file system of this kernel.
for directory in /run /var/tmp; do
  # A checkout that stands there must stay in sight.
  case $FAIRLEAD_GUEST_DIR in "$directory"/*) continue ;; esac
  must mount -t tmpfs -o mode=1777 tmpfs "$directory"
done

export FAIRLEAD_GUEST=1
sh "$FAIRLEAD_GUEST_DIR/command" >"$FAIRLEAD_GUEST_DIR/output" 2>&1 </dev/null
echo "$?" >"$FAIRLEAD_GUEST_DIR/exit-code"
power_off
