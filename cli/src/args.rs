//! The command line.

use crate::exit::{self, Exit};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Look at agent runs and their tool calls.
#[derive(Debug, Parser)]
#[command(name = "kubectl-fairlead", bin_name = "kubectl fairlead", version, after_help = exit::HELP)]
pub struct Cli {
    /// How the cluster is reached.
    #[command(flatten)]
    pub connection: Connection,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// How the cluster is reached; the same flags as kubectl's.
#[derive(Clone, Debug, Default, Args)]
pub struct Connection {
    /// Kubeconfig file; KUBECONFIG or ~/.kube/config by default, and in a Pod its ServiceAccount
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig; its current one by default
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace; the context's own by default
    #[arg(short, long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show the runs, and follow them until Ctrl-C
    Runs(Runs),
    /// Follow one run: turns, calls and executions as they happen, and the answer at the end
    #[command(
        after_help = "The story goes to standard error and the answer to standard output, so that\n\
        answer=$(kubectl fairlead watch RUN) holds just the answer."
    )]
    Watch(Watch),
    /// Print the output of a tool execution, exactly as the model saw it
    Output(Output),
    /// Check the installation: server, CRDs, policies, operator, nodes
    Check(Check),
}

/// Options of `runs`.
#[derive(Debug, Args)]
pub struct Runs {
    /// Show the present state and end
    #[arg(long)]
    pub once: bool,
    /// Runs of every namespace
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Only runs with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Form of the output; json and yaml show the present state and end
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<TableForm>,
}

/// Options of `watch`.
#[derive(Debug, Args)]
pub struct Watch {
    /// Name of the AgentRun
    pub run: String,
    /// Seconds to wait for the run to be there
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub timeout: u64,
    /// Print the finished run as json or yaml in place of the answer
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<ObjectForm>,
}

/// Options of `output`.
#[derive(Debug, Args)]
pub struct Output {
    /// Name of the ToolExecution
    pub execution: String,
    /// Print status.output (text, sizes, digest) as json or yaml in place of the text alone
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<ObjectForm>,
}

/// Options of `check`.
#[derive(Debug, Args)]
pub struct Check {
    /// Namespace Fairlead is installed in
    #[arg(long, default_value = "fairlead-system", value_name = "NAME")]
    pub install_namespace: String,
    /// Form of the output: one line per check by default
    #[arg(short, long, value_name = "FORM")]
    pub output: Option<ObjectForm>,
}

/// Forms of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableForm {
    /// More columns.
    Wide,
    /// The objects as JSON.
    Json,
    /// The objects as YAML.
    Yaml,
}

/// Forms of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObjectForm {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Parses the command line. What clap has to say is printed here; a wrong command line is [`Exit::NotFound`], since 2,
/// clap's own code, means a cancelled run.
pub fn parse() -> Result<Cli, Exit> {
    Cli::try_parse().map_err(|error| {
        // If the terminal is gone there is nobody to tell.
        let _ = error.print();
        if error.use_stderr() {
            Exit::NotFound
        } else {
            Exit::Success
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_of_the_connection_may_follow_the_verb() {
        let cli = Cli::try_parse_from(["kubectl-fairlead", "runs", "-n", "team-a", "--once", "-o", "wide"])
            .unwrap();
        assert_eq!(cli.connection.namespace.as_deref(), Some("team-a"));
        let Verb::Runs(runs) = cli.verb else {
            panic!("not runs")
        };
        assert!(runs.once);
        assert_eq!(runs.output, Some(TableForm::Wide));
    }
}
