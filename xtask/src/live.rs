//! The right to run `ferroce fabric live`, which many containers refuse: namespaces, and a TUN device in them.

use crate::process::Job;
use crate::step::Context;

/// With 1, a test of `ferroce fabric live` is skipped where the command is refused. It names the reason. Otherwise it fails.
const ALLOW_SKIP: &str = "FERROCE_TEST_SKIP_LIVE";
/// The namespaces of a host.
const NAMESPACES: [&str; 7] = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"];
/// Creates the device of a host. Without `ip`, it only opens the driver.
const TUN: &str =
    "exec 3<>/dev/net/tun; if command -v ip >/dev/null; then exec ip tuntap add fab0 mode tun; fi";

/// Allows the tests of a job to skip what needs a live fabric, if the user of the job cannot run one. `unshare` is that program as this
/// user.
pub(crate) fn allow_skip(ctx: &Context, job: Job, unshare: impl Fn() -> Job) -> Job {
    // Root of a container may need a user namespace, like an ordinary user.
    let can_run = [&[][..], &["--user", "--map-root-user"]].into_iter().any(|user: &[&str]| {
        unshare().args(user).args(NAMESPACES).args(["sh", "-c", TUN]).limit_s(30).answer(ctx).is_ok()
    });
    if can_run { job } else { job.env(ALLOW_SKIP, "1") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Tier;

    #[test]
    fn only_a_refused_user_may_skip() {
        let ctx = Context::new(false, Tier::Default);
        let allowed = |unshare: &str| {
            let job = Job::new("sh").args(["-c", "echo $FERROCE_TEST_SKIP_LIVE"]).env_clear();
            allow_skip(&ctx, job, || Job::new(unshare)).answer(&ctx).expect("sh runs")
        };
        assert_eq!(allowed("true"), "\n");
        assert_eq!(allowed("false"), "1\n");
        assert_eq!(allowed("/nonexistent/unshare"), "1\n");
    }
}
