//! Describes the process that has the port if binding fails.

use ferroce_proto::wire::ROCE_UDP_PORT;
use std::path::Path;

/// Describes the process that is bound to the RoCE port in this network namespace.
pub(super) fn describe() -> String {
    let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|p| std::fs::read_to_string(p).unwrap_or_default());
    let Some((uid, inode)) = tables.iter().find_map(|table| find_owner(table, ROCE_UDP_PORT)) else {
        return "another program".into();
    };
    let user = user(uid);
    match process_with_socket(inode) {
        Some(process) => format!("{process} of {user}"),
        None if Path::new("/sys/module/rdma_rxe").exists() => {
            "the kernel's Soft-RoCE (module rdma_rxe)".into()
        }
        None => format!("a program of {user}"),
    }
}

/// User and inode of the first socket on `port` in the text of `/proc/net/udp`.
fn find_owner(table: &str, port: u16) -> Option<(u32, u64)> {
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let (_addr, hex_port) = words.nth(1)?.split_once(':')?;
        if u16::from_str_radix(hex_port, 16).ok()? != port {
            return None;
        }
        // Behind the local address: remote address, state, queues, timer, retransmits, uid, timeout, inode.
        let uid = words.nth(5)?.parse().ok()?;
        let inode = words.nth(1)?.parse().ok()?;
        Some((uid, inode))
    })
}

/// Describes the user. In a user namespace the kernel reports all unmapped users as one number, the overflow user ID.
fn user(uid: u32) -> String {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse().ok();
    let is_stranger = number("/proc/sys/kernel/overflowuid") == Some(uid)
        && std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !knows_everybody(&map));
    match user_name(uid) {
        _ if is_stranger => "another user, unknown in this user namespace".into(),
        Some(name) => format!("user {name} ({uid})"),
        None => format!("user {uid}"),
    }
}

/// Whether the text of `/proc/self/uid_map` maps every user, as outside of all user namespaces.
fn knows_everybody(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn user_name(uid: u32) -> Option<String> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// The process that holds the socket, if its /proc entry is readable.
fn process_with_socket(inode: u64) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut fds = std::fs::read_dir(process.path().join("fd")).ok()?.flatten();
        fds.find(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == wanted.as_str()))?;
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        Some(format!("process {pid} ({})", name.trim_end()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            77: 0100007F:0277 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 11 2 0 0\n\
            91: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 36712 2 0 0\n";
        assert_eq!(find_owner(table, 4791), Some((1000, 36712)));
        assert_eq!(find_owner(table, 4792), None);
        assert_eq!(find_owner("", 4791), None);
    }

    #[test]
    fn only_outside_of_namespaces_everybody_is_known() {
        assert!(knows_everybody("         0          0 4294967295\n"));
        for map in ["      1000       1000          1\n", "0 1000 1\n1 100000 65536\n", ""] {
            assert!(!knows_everybody(map), "{map}");
        }
    }
}
