//! Figures in the output of benchmark programs: reading, combining and formatting.

use serde_json::Value;

/// perftest and ucx_perftest count in MiB, although they print MB.
pub const MIB: f64 = 1_048_576.0;

/// A figure of perftest's last row.
pub fn of_perftest(output: &str, column: usize) -> Option<f64> {
    output.lines().rev().find_map(|line| {
        let numbers: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        (numbers.len() >= 4).then(|| numbers.get(column).copied()).flatten()
    })
}

/// A figure of the final row of ucx_perftest: iterations, three times, two bandwidths, two rates.
pub fn of_ucx(output: &str, column: usize) -> Option<f64> {
    let row = output.lines().rev().find_map(|line| line.trim().strip_prefix("Final:"))?;
    row.split_whitespace().nth(column)?.parse().ok()
}

/// The received rate of `iperf3 --json`, in MiB/s.
pub fn of_iperf3(output: &str) -> Option<f64> {
    let bits_per_s = json_in(output)?["end"]["sum_received"]["bits_per_second"].as_f64()?;
    Some(bits_per_s / 8.0 / MIB)
}

/// A figure of the first size of `ferroce perf TEST --json`.
pub fn of_own_perf(output: &str, [group, name]: [&str; 2]) -> Option<f64> {
    let json = json_in(output)?;
    let line = if json.is_array() { &json[0] } else { &json };
    line[group][name].as_f64()
}

/// The JSON value that begins somewhere in a text and reaches to its end.
fn json_in(output: &str) -> Option<Value> {
    serde_json::from_str(&output[output.find(['[', '{'])?..]).ok()
}

/// A figure as text, with three significant digits.
pub fn digits(figure: f64) -> String {
    match figure {
        ..10.0 => format!("{figure:.2}"),
        ..100.0 => format!("{figure:.1}"),
        _ => format!("{figure:.0}"),
    }
}

/// The best of some figures; NaN if there are none.
pub fn best(values: &[f64], less_is_better: bool) -> f64 {
    values
        .iter()
        .copied()
        .fold(f64::NAN, |best, value| if less_is_better { best.min(value) } else { best.max(value) })
}

/// The median; NaN if there are no values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_perftest_are_read() {
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n 8       100000          0.97           2201.28      1.67     \t       1.92        \t12.77  \t\t4.41    \t\t11.84  \n---------------------------------------------------------------------------------------\n";
        assert_eq!(of_perftest(latency, 4), Some(1.67));
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      20000            0.00               9985.48\t\t   0.159768\n---------------------------------------------------------------------------------------\n";
        assert_eq!((of_perftest(bandwidth, 3), of_perftest(bandwidth, 4)), (Some(9985.48), Some(0.159768)));
        assert_eq!(of_perftest("nothing", 3), None);
    }

    #[test]
    fn the_final_row_of_ucx_is_read() {
        let output = "+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+\n[thread 0]             99125      0.431     5.075     5.075        1.50       1.50      197033      197033\nFinal:                100000      0.468    26.396     5.262        0.29       1.45       37884      190047\n";
        assert_eq!(
            (of_ucx(output, 1), of_ucx(output, 5), of_ucx(output, 7)),
            (Some(0.468), Some(1.45), Some(190_047.0))
        );
        assert_eq!(of_ucx("nothing", 1), None);
    }

    #[test]
    fn the_received_stream_of_iperf3_is_read() {
        let output = "{\n\t\"end\":\t{\n\t\t\"sum_sent\":\t{\n\t\t\t\"bits_per_second\":\t19568092259.709732\n\t\t},\n\t\t\"sum_received\":\t{\n\t\t\t\"seconds\":\t1.007474,\n\t\t\t\"bytes\":\t2457600000,\n\t\t\t\"bits_per_second\":\t19514945298.8365,\n\t\t\t\"sender\":\ttrue\n\t\t}\n\t}\n}\n";
        assert_eq!(of_iperf3(output).map(f64::round), Some(2326.0));
        assert_eq!(of_iperf3("{\"error\": \"unable to connect to server\"}"), None);
    }

    #[test]
    fn own_figures_are_read_behind_words() {
        let output = "ferroce perf: client 127.0.0.1 connected.\n[\n  {\n    \"params\": {\"test\": \"udp-lat\", \"size\": 8},\n    \"latency\": {\"samples\": 20000, \"min_ns\": 1499.5, \"median_ns\": 2178.75}\n  }\n]\n";
        assert_eq!(of_own_perf(output, ["latency", "median_ns"]), Some(2178.75));
        assert_eq!(of_own_perf(output, ["bandwidth", "gigabytes_per_s"]), None);
        assert_eq!(of_own_perf("{", ["latency", "median_ns"]), None);
    }

    #[test]
    fn the_median_of_nothing_is_no_number() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert!(median(&mut []).is_nan());
        assert_eq!((best(&[3.0, 1.0, 2.0], true), best(&[3.0, 1.0, 2.0], false)), (1.0, 3.0));
        assert!(best(&[], true).is_nan());
    }
}
