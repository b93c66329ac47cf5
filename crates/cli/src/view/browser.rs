//! The token in the address, and how only the user's own browser gets it.

use crate::page;
use crate::signals::Blocked;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// 128 random bits as hexadecimal digits.
pub(super) fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares in a time that depends on the lengths only.
pub(super) fn is_equal(one: &str, other: &str) -> bool {
    one.len() == other.len() && one.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// A file that leads to the page; removed when dropped.
pub(super) struct Redirect(PathBuf);

impl Drop for Redirect {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Redirect {
    /// Writes the file, which only this user can read.
    fn new(url: &str) -> io::Result<Redirect> {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let path = folder.join(format!("ferroce-view-{}-{}.html", std::process::id(), &token()?[..8]));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let redirect = Redirect(path);
        let url = page::escape(url);
        writeln!(
            file,
            "<!DOCTYPE html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0;url={url}\"><a href=\"{url}\">ferroce view</a>"
        )?;
        Ok(redirect)
    }
}

/// Opens the user's browser where there is a screen. All users of the host can read arguments of commands, so the browser gets
/// a file that leads to the address.
pub(super) fn open(url: &str, signals: &Blocked) -> Option<Redirect> {
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if !has_screen || !io::stdout().is_terminal() {
        return None;
    }
    let redirect = Redirect::new(url).ok()?;
    let mut command = Command::new("xdg-open");
    command.arg(&redirect.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    signals.release_in(&mut command);
    match command.spawn() {
        // It is reaped when this process ends.
        Ok(_) => Some(redirect),
        Err(error) => {
            eprintln!("ferroce: no browser was opened: xdg-open: {error}. Open the address above.");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn tokens_differ_and_compare() {
        let (one, other) = (token().expect("random"), token().expect("random"));
        assert!(one.len() == 32 && one != other && is_equal(&one, &one.clone()));
        assert!(!is_equal(&one, &other) && !is_equal(&one, &one[1..]) && !is_equal("", &one));
    }

    #[test]
    fn only_the_user_reads_the_redirect_and_it_does_not_stay() {
        let redirect = Redirect::new("http://127.0.0.1:1/secret/").expect("a file");
        let path = redirect.0.clone();
        assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
        assert!(std::fs::read_to_string(&path).expect("text").contains("url=http://127.0.0.1:1/secret/"));
        drop(redirect);
        assert!(!path.exists());
    }
}
