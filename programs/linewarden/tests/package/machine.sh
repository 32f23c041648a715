#!/usr/bin/env bash
# A private machine of a test: this system's files under a temporary layer, with namespaces, control groups and its own
# systemd, which starts no unit by itself. Usage: unshare --mount --net --pid --uts --ipc --cgroup --fork --kill-child machine.sh DIRECTORY
#
# DIRECTORY is the machine's /mnt. It contains a FIFO `ready`. When the machine has started, it writes a line to this FIFO.
set -euo pipefail
shared=$1
layer=$(mktemp -d -p "$shared")
mount -t tmpfs layer "$layer"
mkdir "$layer"/{upper,work,root}
root=$layer/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" "$root"
for directory in run tmp; do mount -t tmpfs "$directory" "$root/$directory"; done
mount --bind "$shared" "$root/mnt"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 dev "$root/dev"
for node in null zero full random urandom tty; do
    mknod -m 666 "$root/dev/$node" c $((0x$(stat -c %t "/dev/$node"))) $((0x$(stat -c %T "/dev/$node")))
done
ln -s pts/ptmx "$root/dev/ptmx"
ip link set lo up
# No unit of the system is started: neither the units of the default target, nor the units of generators.
rm -rf "$root"/{etc,usr/lib}/systemd/system/*.wants "$root"/usr/lib/systemd/system-generators "$root"/{etc,usr/local/lib}/systemd/system-generators
rm -f "$root/etc/fstab" "$root/usr/sbin/policy-rc.d"
units=$root/etc/systemd/system
cat >"$units/machine.target" <<'UNIT'
[Unit]
DefaultDependencies=no
Wants=machine-ready.service
UNIT
cat >"$units/machine-ready.service" <<'UNIT'
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo ready >/mnt/ready'
UNIT
mkdir -p "$units/linewarden-.service.d"
# A system call that a unit of the package denies ends the process, so that the test notices each denied system call.
cat >"$units/linewarden-.service.d/test.conf" <<'UNIT'
[Service]
StandardOutput=append:/mnt/output
StandardError=append:/mnt/output
SystemCallErrorNumber=kill
UNIT
# Units create private mount namespaces. After a chroot they could not do so; therefore the script changes the root mount.
mkdir "$root/before"
cd "$root"
pivot_root . before
umount --lazy /before
rmdir /before
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=machine.target
