//! Files that a kernel driver provides in sysfs. A file that exists is read; otherwise the files of our device are generated here.

use crate::identity;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(crate) extern "C" fn get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads `dir/file` into the buffer without the final newline. Returns the length, or -1.
pub(crate) unsafe extern "C" fn read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
        return -1;
    }
    // SAFETY: the program's strings, which end in a zero.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let path = Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
    let Some(mut text) = std::fs::read(&path).ok().or_else(|| of_device(&path)) else { return -1 };
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    text.truncate(size - 1);
    text.push(0);
    // SAFETY: the program provides memory for `size` bytes, and the text has no more.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, text.len()) };
    text.len() as c_int - 1
}

/// A file of our device.
fn of_device(path: &Path) -> Option<Vec<u8>> {
    let file = path.strip_prefix(identity::IBDEV_PATH).ok()?.to_str()?;
    let guid = || {
        let guid = u64::from_be_bytes(identity::node_guid());
        let part = |at: u32| guid >> (48 - 16 * at) & 0xffff;
        format!("{:04x}:{:04x}:{:04x}:{:04x}", part(0), part(1), part(2), part(3))
    };
    let text = match file {
        "board_id" => identity::BOARD_ID.to_owned(),
        "fw_ver" => identity::FW_VER.to_owned(),
        "node_desc" => identity::NAME.to_owned(),
        "node_type" => identity::wire().node_type().to_owned(),
        "hw_rev" => "0".to_owned(),
        "hca_type" => "ferroce".to_owned(),
        "node_guid" | "sys_image_guid" => guid(),
        _ => return None,
    };
    Some(text.into_bytes())
}
