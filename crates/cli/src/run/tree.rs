//! The files that programs read outside the library, below /sys/class/infiniband and /dev/infiniband.
//!
//! UCX ignores a device without a character device in /dev/infiniband and reads the GID types from sysfs; pyverbs
//! finds the network interface there. The tree is a snapshot of the GID table at the start.
//!
//! As in the kernel's sysfs, the entry of the class is a link to `PARENT/infiniband/ferroce0`, and `device` there leads to
//! `PARENT`. Programs derive the PCI position of the device from the real path of either (NCCL, UCX, libfabric, Mooncake). The
//! folder has no `subsystem`: with one, NCCL searches for a PCI device below /sys/devices. A NIC that is no PCI device is
//! attached to the first processor.

use crate::devices::{DEVICE, PORT};
use ferroce_nic::{GidEntry, Wire, port_gids};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The classes of sysfs.
pub(crate) const CLASSES: &str = "/sys/class";
/// The folder of device nodes.
pub(crate) const DEV: &str = "/dev";
/// The folder of RDMA devices, in both.
pub(crate) const INFINIBAND: &str = "infiniband";
/// The folder of ferroce's own files, in both. Below /sys/class it has the device that the entry of the class leads to.
pub(crate) const FERROCE: &str = "ferroce";
/// A device that every user may open; the opened file is never used.
const NULL: &str = "/dev/null";

/// The folder of the device. It is no PCI address, because no PCI device of that address exists: libfabric would report the
/// address, and MPICH ends with a failed assertion if hwloc does not find it. NCCL writes zeros over the last digits, where a
/// PCI address has the function and the device number: they are zero already.
const PARENT: &str = "ferroce-00.0";
/// The attributes of a PCI device that does not limit the NIC.
const PCI_ATTRIBUTES: [(&str, &str); 12] = [
    ("numa_node", "-1"),
    // An Ethernet controller.
    ("class", "0x020000"),
    // The lower half of the vendor ID that `ibv_query_device` returns; no vendor of hardware.
    ("vendor", "0x70ce"),
    ("device", "0x0001"),
    ("subsystem_vendor", "0x70ce"),
    ("subsystem_device", "0x0001"),
    ("revision", "0x00"),
    ("enable", "1"),
    ("max_link_speed", "32.0 GT/s PCIe"),
    ("max_link_width", "16"),
    ("current_link_speed", "32.0 GT/s PCIe"),
    ("current_link_width", "16"),
];

/// A file to make, below one of the folders above.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    File(String),
    Link(PathBuf),
}

/// The files of the device in sysfs.
pub(crate) struct SysTree(Vec<(String, Entry)>);

impl SysTree {
    /// The files for a device with these addresses. Those of an iWARP device are as siw's.
    ///
    /// A program that finds a network interface there connects by rdma_cm. The system's librdmacm needs a kernel
    /// module for that, and fails late and obscurely. So the interface is listed only if ferroce's own librdmacm is
    /// there (`connects`).
    pub(crate) fn of(wire: Wire, addresses: &[GidEntry], connects: bool) -> SysTree {
        let mut tree = SysTree(Vec::new());
        tree.device(wire);
        tree.interface(addresses.first().filter(|_| connects));
        tree.port(wire, addresses);
        let gids = port_gids(wire, addresses.to_vec());
        gids.iter().enumerate().for_each(|(index, gid)| tree.gid(wire, index, gid));
        tree
    }

    fn device(&mut self, wire: Wire) {
        self.file("node_type", wire.node_type());
        self.file("node_desc", "ferroce software RDMA NIC");
        self.file("fw_ver", env!("CARGO_PKG_VERSION"));
        self.file("hca_type", "ferroce");
        self.0.push(("device".to_owned(), Entry::Link(Path::new("../../../").join(PARENT))));
        PCI_ATTRIBUTES.into_iter().for_each(|(name, text)| self.file(&format!("device/{name}"), text));
        // The NIC runs on the processors of the program.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        for (name, field) in [("local_cpus", "Cpus_allowed:"), ("local_cpulist", "Cpus_allowed_list:")] {
            if let Some(value) = status.lines().find_map(|line| line.strip_prefix(field)) {
                self.file(&format!("device/{name}"), value.trim());
            }
        }
    }

    /// The interface of the first GID, which is the one that programs pick.
    fn interface(&mut self, first: Option<&GidEntry>) {
        if let Some(first) = first {
            let interface = Path::new("/sys/class/net").join(&first.interface);
            self.0.push((format!("device/net/{}", first.interface), Entry::Link(interface)));
        }
    }

    fn port(&mut self, wire: Wire, gids: &[GidEntry]) {
        let up = gids.iter().any(|gid| gid.up);
        let is_roce = wire == Wire::Roce;
        let lid = format!("{:#x}", gids.first().filter(|_| is_roce).map_or(0, GidEntry::lid));
        let files = [
            ("state", if up { "4: ACTIVE" } else { "1: DOWN" }),
            ("phys_state", if up { "5: LinkUp" } else { "3: Disabled" }),
            ("link_layer", "Ethernet"),
            ("lid", &lid),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("rate", "25 Gb/sec (1X EDR)"),
            ("cap_mask", if is_roce { "0x00010000" } else { "0x00090000" }),
        ];
        // iWARP has no partitions.
        let pkeys = is_roce.then_some(("pkeys/0", "0xffff"));
        files
            .into_iter()
            .chain(pkeys)
            .for_each(|(name, text)| self.file(&format!("ports/{PORT}/{name}"), text));
    }

    fn gid(&mut self, wire: Wire, index: usize, entry: &GidEntry) {
        let port = format!("ports/{PORT}");
        self.file(&format!("{port}/gids/{index}"), &entry.gid.to_string());
        self.file(&format!("{port}/gid_attrs/types/{index}"), gid_type(wire));
        self.file(&format!("{port}/gid_attrs/ndevs/{index}"), &entry.interface);
    }

    fn file(&mut self, name: &str, text: &str) {
        self.0.push((name.to_owned(), Entry::File(format!("{text}\n"))));
    }

    /// Makes the files below `classes`, which stands for [`CLASSES`].
    pub(crate) fn make_in(&self, classes: &Path) -> io::Result<()> {
        let device = Path::new(FERROCE).join(PARENT).join(INFINIBAND).join(DEVICE);
        std::fs::create_dir_all(classes.join(&device))?;
        std::fs::create_dir_all(classes.join(INFINIBAND))?;
        symlink(Path::new("..").join(&device), classes.join(INFINIBAND).join(DEVICE))?;
        for (name, entry) in &self.0 {
            let path = classes.join(&device).join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(classes))?;
            match entry {
                Entry::File(text) => std::fs::write(path, text)?,
                Entry::Link(target) => symlink(target, path)?,
            }
        }
        Ok(())
    }
}

/// The kernel's name for the type of a GID.
fn gid_type(wire: Wire) -> &'static str {
    match wire {
        Wire::Iwarp => "IB/RoCE v1",
        _ => "RoCE v2",
    }
}

/// Creates the device node below `dev`, which stands for [`DEV`]: a link to a node that every user may open, since making
/// a node needs privilege.
pub(crate) fn make_node_in(dev: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dev.join(INFINIBAND))?;
    symlink(NULL, dev.join(INFINIBAND).join("uverbs0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_nic::Config;

    #[test]
    fn the_tree_contains_the_gid_table() {
        let addresses = Some(vec!["127.0.0.5".parse().expect("an address")]);
        let gids =
            ferroce_nic::gid_table(&Config::default().with(|c| c.addresses = addresses)).expect("loopback");
        let folder = std::env::temp_dir().join(format!("ferroce-tree-{}", std::process::id()));
        SysTree::of(Wire::Roce, &gids, true).make_in(&folder).expect("files of ours");
        let read = |name: &str| {
            std::fs::read_to_string(folder.join(INFINIBAND).join(DEVICE).join(name)).expect("a file")
        };
        assert_eq!(read("ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:7f00:0005\n");
        assert_eq!(read("ports/1/gid_attrs/types/0"), "RoCE v2\n");
        assert_eq!(read("ports/1/gid_attrs/ndevs/0"), "lo\n");
        assert_eq!(read("ports/1/state"), "4: ACTIVE\n");
        let interfaces =
            std::fs::read_dir(folder.join(INFINIBAND).join(DEVICE).join("device/net")).expect("a folder");
        let names: Vec<_> = interfaces.flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["lo"]);
        std::fs::remove_dir_all(&folder).expect("our own folder");

        SysTree::of(Wire::Roce, &gids, false).make_in(&folder).expect("files of ours");
        assert!(
            !folder.join(INFINIBAND).join(DEVICE).join("device/net").exists(),
            "a librdmacm that cannot work is not offered"
        );
        std::fs::remove_dir_all(&folder).expect("our own folder");

        SysTree::of(Wire::Iwarp, &gids, true).make_in(&folder).expect("files of ours");
        let read = |name: &str| {
            std::fs::read_to_string(folder.join(INFINIBAND).join(DEVICE).join(name)).unwrap_or_default()
        };
        let names = ["node_type", "ports/1/gids/0", "ports/1/gids/1", "ports/1/lid", "ports/1/pkeys/0"];
        let siw = ["4: RNIC\n", "0200:0000:0001:0000:0000:0000:0000:0000\n", "", "0x0\n", ""];
        assert_eq!(names.map(read), siw);
        std::fs::remove_dir_all(folder).expect("our own folder");
    }
}
