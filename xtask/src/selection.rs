//! What all commands that run a table of cases can be asked for.

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
