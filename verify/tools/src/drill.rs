//! The commands of `docs/operations.md`, each run on a deployed stack and held against what the
//! page says of it.

mod archive;
mod limits;
mod on_call;
mod page;
mod proxy;
mod reconciler;
mod restore;
mod shell;
mod stream;
mod stuck;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use weirgate::{Config, ConfigLevel, EpochMillis, Limit, RateLimiter, Table, Window};

use crate::demo::{Stack, connected, now};
use shell::Shell;

/// How long a function gets to do what it does within a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "prod";
const ENTITY: &str = "openai";
const RESOURCE: &str = "gpt-4";

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Every procedure of the page, and the on-call exercise.
    All,
    /// The on-call exercise alone.
    OnCall,
}

/// Runs every procedure of the page once, or a part of them, on a stack of its own.
///
/// # Errors
/// The first thing that is not as the page says.
pub async fn run(part: Part, progress: impl Fn(&str)) -> Result<(), String> {
    let built = std::env::current_exe()
        .map_err(|error| format!("this program's own path is unknown: {error}"))?;
    let built = built.parent().map(PathBuf::from).unwrap_or_default();
    let stack = Stack::start_with(&built, &progress).await?;
    let mut environment = stack.environment();
    environment.push(("WEIRGATE_NAMESPACE".to_owned(), NAMESPACE.to_owned()));
    if let Some((_, path)) = environment.iter_mut().find(|(name, _)| name == "PATH") {
        *path = format!("{}:{path}", built.display());
    }
    let shell = Shell::new(stack.folder().to_owned(), environment)?;
    let mut drill = Drill {
        shell: &shell,
        endpoint: stack.endpoint.clone(),
        table: Table::new(connected(&stack.endpoint).await, stack.output("TableName")?),
        started: now(),
        taken: 0,
        progress: &progress,
    };
    if part == Part::OnCall {
        return drill.on_call().await;
    }
    drill.usage().await?;
    drill.discarded().await?;
    drill.stream().await?;
    drill.stuck().await?;
    drill.archive().await?;
    drill.reconciler().await?;
    drill.leases().await?;
    drill.unreadable().await?;
    drill.limits().await?;
    drill.slots().await?;
    drill.on_call().await?;
    drill.leftovers().await?;
    drill.restore().await?;
    drill.removed().await?;
    let left = shell.left();
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "these blocks of docs/operations.md are not run: {left:?}"
        ))
    }
}

struct Drill<'a, P> {
    shell: &'a Shell,
    endpoint: String,
    table: Table,
    started: EpochMillis,
    /// Acquires that were granted, and so should be counted.
    taken: i64,
    progress: &'a P,
}

/// An error unless `holds`.
fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl<P: Fn(&str)> Drill<'_, P> {
    fn say(&self, what: &str) {
        (self.progress)(what);
    }

    /// Returns a new limiter without views.
    async fn limiter(&self) -> Result<RateLimiter, String> {
        let table = Table::new(connected(&self.endpoint).await, self.table.name());
        RateLimiter::builder("drill")
            .table(table)
            .namespace(NAMESPACE)
            .owner("drill")
            .build()
            .await
            .map_err(told)
    }

    /// Configures a resource.
    async fn configure(&self, resource: &str, limit: Limit) -> Result<(), String> {
        let level = ConfigLevel::Resource(resource.try_into().map_err(told)?);
        self.limiter()
            .await?
            .set_config(&level, &Config::of([limit]))
            .await
            .map_err(told)
    }

    /// Takes one token of a resource, `times` times.
    async fn take_of(&self, resource: &str, times: i64) -> Result<(), String> {
        let limiter = self.limiter().await?;
        for _ in 0..times {
            let decision = limiter
                .acquire(ENTITY, resource)
                .take("rpm", 1)
                .send()
                .await
                .map_err(told)?;
            expect(decision.is_granted(), || {
                format!("a caller was refused: {decision:?}")
            })?;
        }
        Ok(())
    }

    /// Takes one token of a new resource, `times` times, and deletes its bucket. What was used is
    /// then in the stream alone.
    async fn take_and_delete(&self, resource: &str, times: i64) -> Result<(), String> {
        self.configure(resource, Limit::per_minute("rpm", 100_000).map_err(told)?)
            .await?;
        self.take_of(resource, times).await?;
        self.delete(resource, 0).await
    }

    /// Deletes the item of a bucket's shard.
    async fn delete(&self, resource: &str, shard: u32) -> Result<(), String> {
        let delete =
            "aws dynamodb delete-item --table-name \"$of\" --key \"$(item \"$pk\" '#STATE')\"";
        let pk = format!("{NAMESPACE}/BUCKET#{ENTITY}#{resource}#{shard}");
        self.shell
            .text(delete, &[("of", self.table.name()), ("pk", &pk)])
            .await
            .map(drop)
    }

    async fn take(&mut self, times: i64) -> Result<(), String> {
        self.take_of(RESOURCE, times).await?;
        self.taken += times;
        Ok(())
    }

    /// Acquires that readers see in all windows of one kind.
    async fn counted(&self, resource: &str, window: Window) -> Result<i128, String> {
        let limiter = self.limiter().await?;
        let (mut sum, mut start) = (0, window.start(self.started));
        while start <= now() {
            sum += limiter
                .usage(ENTITY, resource, window, start)
                .await
                .map_err(told)?
                .usage
                .acquires;
            start = window.end(start);
        }
        Ok(sum)
    }

    async fn until_counted(&self, expected: i64) -> Result<(), String> {
        self.until_counted_of(RESOURCE, expected).await
    }

    /// Waits until hours and days count `expected`, and no more. Usage of a bucket that is there is
    /// exact at once, that of a deleted one when the stream has brought it.
    async fn until_counted_of(&self, resource: &str, expected: i64) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let counted = [
                self.counted(resource, Window::Hourly).await?,
                self.counted(resource, Window::Daily).await?,
            ];
            if counted == [expected.into(); 2] {
                return Ok(());
            }
            let is_over = counted.iter().any(|counted| *counted > expected.into())
                || Instant::now() >= deadline;
            expect(!is_over, || {
                format!("hours and days count {counted:?} acquires, and {expected} were made")
            })?;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    async fn usage(&mut self) -> Result<(), String> {
        self.configure(RESOURCE, Limit::per_minute("rpm", 100_000).map_err(told)?)
            .await?;
        self.take(20).await?;
        self.until_counted(20).await?;
        self.say("20 acquires, counted without waiting for the stream");
        Ok(())
    }
}
