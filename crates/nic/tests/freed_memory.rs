//! Memory that is unmapped while it is registered: a sentence for whoever asked for one, and the signal as without us.

#![expect(unsafe_code, reason = "unmaps memory that is registered, and handles the fault")]

use ferroce_nic::{Config, Nic};
use ferroce_proto::verbs::Access;
use std::ffi::{c_int, c_void};
use std::process::{Command, Output};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the other process does; set in that process only.
const ROLE: &str = "FREED_MEMORY_ROLE";
const LEN: usize = 1 << 16;
/// The memory that is unmapped.
static BASE: AtomicUsize = AtomicUsize::new(0);
static FAULTS: AtomicUsize = AtomicUsize::new(0);

fn map(at: usize, flags: c_int) -> usize {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, or memory where the test has just unmapped some.
    let mapped = unsafe { libc::mmap(at as *mut c_void, LEN, protection, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped as usize
}

fn unmap(at: usize) {
    // SAFETY: memory of `map`.
    assert_eq!(unsafe { libc::munmap(at as *mut c_void, LEN) }, 0);
}

/// A handler of the program: maps the memory again.
extern "C" fn map_again(_signal: c_int, _info: *mut libc::siginfo_t, _context: *mut c_void) {
    map(BASE.load(Ordering::Relaxed), libc::MAP_FIXED);
    FAULTS.fetch_add(1, Ordering::Relaxed);
}

fn action(new: *const libc::sigaction) -> libc::sigaction {
    // SAFETY: all zeros is a valid action.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: null or a whole action, and a structure to fill.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, new, &raw mut now) }, 0);
    now
}

/// Not a test: the process that frees its memory.
#[test]
fn other_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "handles" {
        // SAFETY: all zeros is a valid action.
        let mut handler: libc::sigaction = unsafe { std::mem::zeroed() };
        (handler.sa_sigaction, handler.sa_flags) = (map_again as *const () as usize, libc::SA_SIGINFO);
        action(&raw const handler);
    }
    let before = action(ptr::null()).sa_sigaction;
    let addresses = Some(vec!["127.91.62.1".parse().unwrap()]);
    let nic = Nic::open(Config::default().with(|config| config.addresses = addresses)).unwrap();
    let pd = nic.alloc_pd().unwrap();
    let at = map(0, 0);
    BASE.store(at, Ordering::Relaxed);
    // SAFETY: the test is about memory that does not stay; the NIC does not access it.
    let region = unsafe { pd.register(at, LEN, at as u64, Access::LOCAL_WRITE, None) }.unwrap();
    if role == "forks" {
        let registers = Arc::new(());
        let other = Arc::downgrade(&registers);
        let thread = {
            let pd = pd.clone();
            let there = map(0, 0);
            std::thread::spawn(move || {
                while other.strong_count() > 0 {
                    // SAFETY: stays mapped.
                    drop(
                        unsafe { pd.register(there, LEN, there as u64, Access::LOCAL_WRITE, None) }.unwrap(),
                    );
                }
            })
        };
        for _ in 0..200 {
            // SAFETY: the child drops a region, which takes the lock, and ends.
            match unsafe { libc::fork() } {
                0 => {
                    drop(region);
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) }
                }
                child => {
                    let mut status = 0;
                    // SAFETY: fills the status.
                    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                    assert_eq!(status, 0);
                }
            }
        }
        drop(registers);
        return thread.join().unwrap();
    }
    println!("@same {}", action(ptr::null()).sa_sigaction == before);
    for _ in 0..2 {
        unmap(at);
        // SAFETY: not memory at this moment; the handler of the program maps some.
        unsafe { ptr::write_volatile(at as *mut u8, 1) };
    }
    println!("@faults {}", FAULTS.load(Ordering::Relaxed));
}

fn run(role: &str, log: &str) -> (Output, String, usize) {
    let mut command = Command::new("timeout");
    command.arg("100").arg(std::env::current_exe().unwrap());
    command.args(["other_process", "--exact", "--nocapture"]).env(ROLE, role).env("FERROCE_LOG", log);
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let sentences = String::from_utf8_lossy(&output.stderr).matches("freed or unmapped it").count();
    (output, stdout, sentences)
}

#[test]
fn a_plain_program_gets_no_handler() {
    let (output, stdout, sentences) = run("handles", "");
    assert!(stdout.contains("@same true") && stdout.contains("@faults 2"), "{output:?}");
    assert_eq!(sentences, 0);
}

#[test]
fn every_fault_is_explained_and_reaches_the_handler_of_the_program() {
    let (output, stdout, sentences) = run("handles", "calls");
    assert!(stdout.contains("@same false") && stdout.contains("@faults 2"), "{output:?}");
    assert_eq!(sentences, 2);
}

#[test]
fn without_a_handler_of_the_program_it_ends_by_the_signal() {
    let (output, _, sentences) = run("dies", "calls");
    // What `timeout` makes of SIGSEGV.
    assert!(!output.status.success() && output.status.code() != Some(124), "{output:?}");
    assert_eq!(sentences, 1);
}

#[test]
fn a_child_that_is_forked_while_memory_is_registered_does_not_hang() {
    let (output, ..) = run("forks", "calls");
    assert!(output.status.success(), "{output:?}");
}
