//! Every example of the folder scenarios/ is valid and runs; only its first microseconds are simulated here.

use ferroce_fabric::scenario::Scenario;
use std::path::Path;

#[test]
fn every_example_runs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder scenarios")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    for path in names {
        let text = std::fs::read_to_string(&path).expect("readable");
        let scenario =
            Scenario::parse_live(&text, &folder).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert!(!scenario.about().is_empty(), "{path:?} states what it shows");
        if !scenario.has_workload() {
            let commands = scenario.commands().unwrap_or_else(|error| panic!("{path:?}: {error}"));
            assert!(!commands.is_empty(), "{path:?} has neither flows nor programs");
            continue;
        }
        for at in 0..scenario.runs() {
            let mut run = scenario.run(at, None, false).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            run.world.run_until(run.limit_ps.min(30_000_000));
            let (sent, parts) = run.world.balance();
            assert!(sent > 0, "{path:?} {}: nothing was sent in 30 us", run.name);
            assert_eq!(sent, parts.iter().sum::<u64>(), "{path:?} {}", run.name);
        }
    }
}
