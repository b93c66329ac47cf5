#!/bin/busybox sh
# First process of the guest: load the modules, make the Soft-RoCE device, then take commands from the host.
export PATH=/usr/bin:/usr/sbin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp /run /var/run /etc
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs none /dev/shm
ulimit -l unlimited

# In the order of their dependencies, written by `cargo xtask interop`.
while read -r module; do insmod "$module" || echo "insmod $module failed"; done < /modules.list

. /guest.conf
# With their full names: this shell prefers busybox applets, and its `ip` and `tc` know too little.
/usr/bin/ip link set lo up
/usr/bin/ip link set eth0 mtu "$MTU" up
/usr/bin/ip addr add "$GUEST_V4/24" dev eth0
/usr/bin/ip -6 addr add "$GUEST_V6/64" dev eth0 nodad
/usr/bin/ip neigh replace "$HOST_V4" lladdr "$HOST_MAC" dev eth0 nud permanent
/usr/bin/ip -6 neigh replace "$HOST_V6" lladdr "$HOST_MAC" dev eth0 nud permanent
rdma link add rxe0 type rxe netdev eth0
sysctl -q -w net.core.rmem_max=8388608 net.core.wmem_max=8388608
# Not traffic of ours: whatever the host answers here would only blur the counters.
echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_ra

# One shell per port. A request is one line, `TOKEN COMMAND`; the answer is its output, then a line `TOKEN STATUS`.
serve() {
    exec 3<>"$1"
    while :; do
        # While the host has not connected, reading ends at once.
        read -r token command <&3 || { usleep 50000; continue; }
        sh -c "$command" < /dev/null >&3 2>&1 3>&-
        echo "
$token $?" >&3
    done
}
for port in /dev/vport*; do serve "$port" & done
wait
poweroff -f
