//! The commands.

mod acquire;
mod audit;
mod balances;
mod buckets;
mod completions;
mod confirm;
mod docs;
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
mod pauses;
mod peek;
mod plans;
mod purge;
mod reconcile;
mod replay;
mod report;
mod shards;
mod switches;
mod unreadable;
mod usage;
mod why;

pub use acquire::check_command_after_dashes;

use clap::Subcommand;

use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// What `weirgate` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows and changes configured limits
    #[command(
        subcommand,
        after_help = "Examples:\n  weirgate limits list\n  weirgate limits set --resource gpt-4 rpm=500/minute"
    )]
    Limits(limits::Limits),
    /// Shows and changes entities and their parents
    #[command(
        subcommand,
        after_help = "Example: weirgate entities set user-1 --parent team-a --cascades"
    )]
    Entities(entities::Entities),
    /// Lists and deletes plans
    #[command(subcommand, after_help = "Example: weirgate plans list")]
    Plans(plans::Plans),
    Namespaces(namespaces::Namespaces),
    Buckets(buckets::Buckets),
    /// Shows and ends the leases of a bucket
    #[command(subcommand, after_help = "Example: weirgate leases list user-1 gpt-4")]
    Leases(leases::Leases),
    Usage(usage::Usage),
    Why(why::Why),
    Peek(peek::Peek),
    Acquire(acquire::Acquire),
    Load(load::Load),
    Stop(switches::Stop),
    Exempt(switches::Exempt),
    Start(switches::Start),
    Switches(switches::Switches),
    Reset(balances::Reset),
    Drain(balances::Drain),
    TopUp(balances::TopUp),
    Pause(pauses::Pause),
    Resume(pauses::Resume),
    Split(shards::Split),
    Merge(shards::Merge),
    Audit(audit::Audit),
    Erase(erase::Erase),
    Purge(purge::Purge),
    Doctor(doctor::Doctor),
    Reconcile(reconcile::Reconcile),
    Replay(replay::Replay),
    Local(local::Local),
    Page(page::Page),
    Docs(docs::Docs),
    Completions(completions::Completions),
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
            Self::Plans(command) => command.run(context).await,
            Self::Namespaces(command) => command.run(context).await,
            Self::Buckets(command) => command.run(context).await,
            Self::Leases(command) => command.run(context).await,
            Self::Usage(command) => command.run(context).await,
            Self::Why(command) => command.run(context).await,
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
            Self::Pause(command) => command.run(context).await,
            Self::Resume(command) => command.run(context).await,
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
            Self::Docs(command) => command.run(context),
            Self::Completions(command) => command.run(context),
            Self::Man(command) => command.run(context),
        }
    }
}
