//! Access rights of memory regions and queue pairs.

use bitflags::bitflags;
use core::fmt;

bitflags! {
    /// Access rights of a memory region or queue pair; the bit values are those of the verbs ABI.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The NIC may write here on behalf of local work requests. Local reads are always allowed.
        const LOCAL_WRITE = 1;
        /// A peer may write here.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read here.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomic operations here.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound here.
        const MW_BIND = 1 << 4;
        /// Remote addresses count from zero instead of the virtual address.
        const ZERO_BASED = 1 << 5;
        /// Pages need not be present; a software NIC faults them in as any program does.
        const ON_DEMAND = 1 << 6;
        /// The region is backed by huge pages.
        const HUGETLB = 1 << 7;
        /// A peer may flush its writes here to make them globally visible.
        const FLUSH_GLOBAL = 1 << 8;
        /// Writes may become visible out of order. Optional: accepted and ignored.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Bits 20 to 29 are optional: a device ignores those that it does not support.
    pub const OPTIONAL: u32 = 0x3ff0_0000;
    /// Every right that grants remote access.
    pub const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
}

/// The names of the rights; "nothing" for none.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        for (n, (name, _)) in self.iter_names().enumerate() {
            write!(f, "{}{name}", if n == 0 { "" } else { " and " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn rights_have_names() {
        assert_eq!(Access::empty().to_string(), "nothing");
        assert_eq!((Access::REMOTE_READ | Access::LOCAL_WRITE).to_string(), "LOCAL_WRITE and REMOTE_READ");
    }
}
