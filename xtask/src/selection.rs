//! What all commands that run a table of cases can be asked for.

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
