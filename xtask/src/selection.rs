//! Options of all commands that run a table of cases.

use std::process::ExitCode;

use serde_json::Value;

use crate::programs::verdict::Row;
use crate::step::fail;

/// How the command line spells a value: `TwoHosts` is `two-hosts`.
pub(crate) fn name_of(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Which cases, and how their outcome is shown.
#[derive(clap::Args)]
pub(crate) struct Selection {
    /// Run only the cases whose name contains this; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Vec<String>,
    /// Print the rows as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// List the cases and stop.
    #[arg(long)]
    pub(crate) list: bool,
}

impl Selection {
    /// Prints a line for a finished row to standard error, so that standard output stays valid JSON.
    pub(crate) fn announce(&self, row: &Row) {
        if !self.json || row.is_failure() {
            eprintln!("{}", row.line());
        }
    }

    /// Prints all rows in the selected format.
    pub(crate) fn close(
        &self,
        rows: Result<Vec<Row>, String>,
        to_json: fn(&[Row]) -> Value,
        to_text: fn(&[Row]) -> String,
    ) -> ExitCode {
        let rows = match rows {
            Ok(rows) => rows,
            Err(reason) => return fail(&reason),
        };
        match self.json {
            true => println!("{}", to_json(&rows)),
            false => print!("{}", to_text(&rows)),
        }
        if rows.iter().any(Row::is_failure) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
