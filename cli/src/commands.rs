//! The commands.

mod acquire;
mod audit;
mod balances;
mod buckets;
mod completions;
mod confirm;
mod doctor;
mod entities;
mod erase;
mod leases;
mod limits;
mod list;
mod load;
mod local;
mod namespaces;
mod page;
mod peek;
mod purge;
mod reconcile;
mod replay;
mod report;
mod shards;
mod switches;
mod usage;

use clap::Subcommand;

use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// What `weirgate` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows and changes configured limits
    #[command(subcommand)]
    Limits(limits::Limits),
    /// Shows and changes entities and their parents
    #[command(subcommand)]
    Entities(entities::Entities),
    /// Lists the namespaces of the table
    Namespaces(namespaces::Namespaces),
    /// Lists the buckets of an entity or a resource, with their balances
    Buckets(buckets::Buckets),
    /// Shows and ends the leases of a bucket
    #[command(subcommand)]
    Leases(leases::Leases),
    /// Reports usage, exact to the token
    Usage(usage::Usage),
    /// Shows the balances of a bucket, and takes nothing
    Peek(peek::Peek),
    /// Takes tokens, for a command or for a script
    Acquire(acquire::Acquire),
    /// Acquires at a steady rate, and reports decisions and times
    Load(load::Load),
    /// Stops every acquire of a level
    Stop(switches::Stop),
    /// Lets a level go on although a wider one is stopped
    Exempt(switches::Exempt),
    /// Ends a stop or an exemption
    Start(switches::Start),
    /// Lists the levels that are stopped or exempt
    Switches(switches::Switches),
    /// Sets balances to the capacity, or to an amount
    Reset(balances::Reset),
    /// Sets balances to 0
    Drain(balances::Drain),
    /// Adds tokens to balances, at most to the capacity
    TopUp(balances::TopUp),
    /// Splits a bucket into more shards
    Split(shards::Split),
    /// Merges the shards of a bucket
    Merge(shards::Merge),
    /// Lists the changes of configurations and balances
    Audit(audit::Audit),
    /// Erases an entity: limits, buckets, usage, audit events
    Erase(erase::Erase),
    /// Deletes everything of a namespace
    Purge(purge::Purge),
    /// Checks table, functions, alarms, clock and permissions, and says what to do
    Doctor(doctor::Doctor),
    /// Does what the reconciler does, or shows what is due
    Reconcile(reconcile::Reconcile),
    /// Makes copies of usage from stream records that the aggregator discarded
    Replay(weirgate_replay::Args),
    /// Runs the whole backend on this machine, without AWS
    ///
    /// The table behind HTTP, the aggregator on its stream, the reconciler on a timer. It prints
    /// the environment that callers need, and ends with Ctrl-C.
    Local(local::Local),
    /// Shows buckets and usage in a browser, live
    ///
    /// It only reads, and only while the page is open. It ends with Ctrl-C.
    Page(page::Page),
    /// Prints a script that completes commands in a shell
    Completions(completions::Completions),
    /// Writes a manual page for each command
    Man(completions::Man),
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`], with the line to print and the exit code.
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        match self {
            Self::Limits(command) => command.run(context).await,
            Self::Entities(command) => command.run(context).await,
            Self::Namespaces(command) => command.run(context).await,
            Self::Buckets(command) => command.run(context).await,
            Self::Leases(command) => command.run(context).await,
            Self::Usage(command) => command.run(context).await,
            Self::Peek(command) => command.run(context).await,
            Self::Acquire(command) => command.run(context).await,
            Self::Load(command) => command.run(context).await,
            Self::Stop(command) => command.run(context).await,
            Self::Exempt(command) => command.run(context).await,
            Self::Start(command) => command.run(context).await,
            Self::Switches(command) => command.run(context).await,
            Self::Reset(command) => command.run(context).await,
            Self::Drain(command) => command.run(context).await,
            Self::TopUp(command) => command.run(context).await,
            Self::Split(command) => command.run(context).await,
            Self::Merge(command) => command.run(context).await,
            Self::Audit(command) => command.run(context).await,
            Self::Erase(command) => command.run(context).await,
            Self::Purge(command) => command.run(context).await,
            Self::Doctor(command) => command.run(context).await,
            Self::Reconcile(command) => command.run(context).await,
            Self::Replay(args) => replay::run(args, context).await,
            Self::Local(command) => command.run(context).await,
            Self::Page(command) => command.run(context).await,
            Self::Completions(command) => command.run(context),
            Self::Man(command) => command.run(context),
        }
    }
}
