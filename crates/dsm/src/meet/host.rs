//! Host identities: processes with the same identity can share memory.

use std::fs;

/// A word that is equal for two processes if and only if they may map each other's memory and reach each other's
/// ports: same kernel, same network and PID namespaces, same user. A namespace counts as another host.
pub(crate) fn host_id() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = |name: &str| {
        let link = fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default();
        link.to_string_lossy().chars().filter(char::is_ascii_digit).collect::<String>()
    };
    let user = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let user =
        user.lines().find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next().map(str::to_owned));
    format!("{}/{}/{}/{}", boot.trim(), space("net"), space("pid"), user.unwrap_or_default())
}

/// The host of each process. It is the same in all processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hosts {
    /// By rank: the first process of the same host, which identifies the host.
    pub(crate) first: Vec<u32>,
}

impl Hosts {
    /// From the host identity of each process, by rank.
    pub(crate) fn of(names: &[String]) -> Self {
        let first = |name| names.iter().position(|other| other == name).unwrap_or(0) as u32;
        Self { first: names.iter().map(first).collect() }
    }

    /// A copy in which each process that is not `willing` is on a host of its own.
    pub(crate) fn sharing(&self, willing: impl Fn(u32) -> bool) -> Self {
        let place = |(rank, first): (u32, &u32)| {
            if willing(rank) { format!("with {first}") } else { rank.to_string() }
        };
        Self::of(&(0..).zip(&self.first).map(place).collect::<Vec<_>>())
    }

    /// Each process on a host of its own.
    pub(crate) fn apart(size: u32) -> Self {
        Self { first: (0..size).collect() }
    }

    /// The processes on the host of this one, including itself.
    pub(crate) fn colocated(&self, rank: u32) -> impl Iterator<Item = u32> {
        let host = self.first[rank as usize];
        (0..).zip(&self.first).filter(move |(_, other)| **other == host).map(|(rank, _)| rank)
    }

    /// Whether any two processes are co-located.
    pub(crate) fn any_colocated(&self) -> bool {
        (0..).zip(&self.first).any(|(rank, first)| rank != *first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_host_have_one_number() {
        let hosts = Hosts::of(&["a", "b", "a", "c", "a"].map(str::to_owned));
        assert_eq!(hosts.first, [0, 1, 0, 3, 0]);
        assert_eq!(hosts.colocated(2).collect::<Vec<_>>(), [0, 2, 4]);
        assert_eq!(hosts.sharing(|rank| rank != 0).first, [0, 1, 2, 3, 2]);
        assert!(hosts.any_colocated() && !hosts.sharing(|rank| rank != 0 && rank != 4).any_colocated());
        assert!(!Hosts::apart(5).any_colocated());
    }
}
