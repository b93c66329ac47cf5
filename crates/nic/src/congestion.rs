//! The congestion control of queue pairs.

use ferroce_proto::cc::{
    Choice, CongestionControl, Controller, HalvingWindow, Needs, Path, Share, SharedWindow,
};
use ferroce_proto::verbs::Mtu;
use std::sync::Arc;

/// The path that a controller assumes unless the choice sets other values (`line_rate`, `base_rtt`).
const ASSUMED: Path = Path { line_rate: 12_500_000_000, base_rtt_ns: 20_000, mtu: 1024, hops: 2 };

/// Reads a choice such as `dcqcn-paper,line_rate=1Gb/s`. A controller that needs telemetry is refused: switches stamp packets
/// only in the simulated fabric.
pub fn parse(text: &str) -> Result<Choice, String> {
    let choice: Choice = text.parse().map_err(|e: ferroce_proto::cc::BadChoice| e.to_string())?;
    match can_run(&choice) {
        true => Ok(choice),
        false => Err(format!("{} {NO_TELEMETRY}", choice.preset().name)),
    }
}

/// Why some controllers run only in the simulator.
pub(crate) const NO_TELEMETRY: &str = "needs telemetry from switches, which only `ferroce fabric sim` has";

/// Whether a choice can run on a real path.
pub(crate) fn can_run(choice: &Choice) -> bool {
    !needs(choice).telemetry
}

/// What a choice needs from the two ends and the network.
fn needs(choice: &Choice) -> Needs {
    choice.build(&ASSUMED).needs()
}

/// Whether packets must be ECN-capable for this choice.
pub(crate) fn uses_ecn(choice: &Choice) -> bool {
    let needs = needs(choice);
    needs.ecn_echo || needs.cnp_interval_ns.is_some()
}

/// Whether this choice reacts to the RTT.
pub(crate) fn uses_rtt(choice: &Choice) -> bool {
    needs(choice).rtt
}

/// The controller of a queue pair, with at most `window` bytes in flight: the window that losses halve, or the choice.
pub(crate) fn controller(choice: Option<&Choice>, window: u32, mtu: Mtu, share: &Arc<Share>) -> Controller {
    let share = share.clone();
    match choice {
        None => SharedWindow::new(HalvingWindow::new(window), window, share).into(),
        Some(choice) => match choice.build(&Path { mtu: mtu.bytes(), ..ASSUMED }) {
            Controller::Halving(halving) => SharedWindow::new(halving, window, share).into(),
            chosen => Controller::Boxed(Box::new(SharedWindow::new(chosen, window, share))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_is_bounded_by_the_window() {
        let share = Share::new(1 << 20);
        for name in ["dcqcn-paper", "fixed,window=64MiB", "swift"] {
            let choice = parse(name).unwrap();
            let built = controller(Some(&choice), 256 << 10, Mtu::B4096, &share);
            assert!(built.window() <= 256 << 10, "{name}: {}", built.window());
        }
        assert_eq!(controller(None, 256 << 10, Mtu::B4096, &share).window(), 256 << 10);
    }

    #[test]
    fn ecn_is_used_where_it_is_needed() {
        assert!(uses_ecn(&parse("dcqcn-paper").unwrap()) && uses_ecn(&parse("dctcp").unwrap()));
        assert!(!uses_ecn(&parse("swift").unwrap()) && !uses_ecn(&parse("timely").unwrap()));
    }

    #[test]
    fn time_stamps_are_taken_for_controls_that_react_to_the_rtt() {
        for (name, expected) in [
            ("swift", true),
            ("timely", true),
            ("powertcp-delay", true),
            ("vegas", true),
            ("dcqcn-nic", false),
            ("dctcp", false),
        ] {
            assert_eq!(uses_rtt(&parse(name).unwrap()), expected, "{name}");
        }
    }

    #[test]
    fn telemetry_is_refused() {
        assert!(parse("hpcc").unwrap_err().contains("only `ferroce fabric sim` has"));
        assert!(parse("bbr").unwrap_err().starts_with("there is no congestion control named"));
    }
}
