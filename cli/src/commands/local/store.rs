//! `weirgate local --store`: the functions and the live page of a table in Redis.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use weirgate::RateLimiter;
use weirgate_local::page::{LivePage, Options};
use weirgate_local::{StoreBackend, StoreOptions};
use weirgate_store::StoreUrl;

use super::super::page;
use super::actions;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::stop::Stop;

/// What runs, and where.
#[derive(Debug, Serialize)]
struct Started {
    store: String,
    page_url: String,
    namespace: String,
    /// The environment of a caller, without user and password.
    variables: BTreeMap<&'static str, String>,
}

/// Runs until a signal.
pub async fn run(
    options: StoreOptions,
    page_options: Options,
    context: &Context,
    url: &StoreUrl,
) -> Result<Outcome, Failure> {
    // Before the start, so that a signal during it ends the process in order too.
    let stop = Stop::new()?;
    // The functions handle records from their start on.
    page::show_warnings();
    let limiter = context.limiter_of(RateLimiter::builder(url.to_string()));
    let backend = StoreBackend::start(options, limiter).await?;
    let port = page_options.port;
    let page_options =
        Options { actions: Some(Arc::new(backend.actions().clone())), ..page_options };
    let page = page::start(context.limiter().await?, page_options, "--page-port")?;
    let moved = page::moved(&page, port);
    let started = started(url, context.options().namespace.clone(), &page);
    context.output().print(&started, |started| text(started, &moved))?;
    tokio::select! {
        () = stop.asked() => {}
        () = actions::tell(backend.actions(), context) => {}
    }
    drop(page);
    backend.stop().await;
    Ok(Outcome::Done)
}

fn started(url: &StoreUrl, namespace: String, page: &LivePage) -> Started {
    let variables =
        [("WEIRGATE_STORE", url.to_string()), ("WEIRGATE_NAMESPACE", namespace.clone())];
    Started { store: url.to_string(), page_url: page.url(), namespace, variables: variables.into() }
}

/// Returns it as lines of a shell.
fn text(started: &Started, moved: &str) -> String {
    let Started { store, page_url, variables, .. } = started;
    let exports: String =
        variables.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
    format!(
        "# The functions of the table in {store} run here until Ctrl-C; the table stays.\n\
         # Live page: {page_url}{moved}\n\
         # Callers need this environment, with user and password if there are any:\n{exports}"
    )
}
