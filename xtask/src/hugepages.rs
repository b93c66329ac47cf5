//! Reserves huge pages for tests that need them, if xtask runs as root.

use std::path::Path;

const COUNT: &str = "/proc/sys/vm/nr_hugepages";
/// 2 MiB each.
const WANTED: u64 = 16;

/// The previous number of reserved pages. Dropping it restores that number.
pub(crate) struct HugePages {
    before: Option<u64>,
}

impl HugePages {
    /// Reserves pages, if that is allowed and there are fewer than [`WANTED`]. Without them some tests are skipped.
    pub(crate) fn borrow() -> HugePages {
        let now =
            std::fs::read_to_string(Path::new(COUNT)).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let before = now.filter(|now| *now < WANTED);
        HugePages { before: before.filter(|_| std::fs::write(COUNT, WANTED.to_string()).is_ok()) }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = std::fs::write(COUNT, before.to_string());
        }
    }
}
