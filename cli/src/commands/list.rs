//! Lists, page by page.

use clap::Args;
use serde::Serialize;
use weirgate::{Error, Page, PageToken};

use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Which part of a list to print.
#[derive(Debug, Clone, Args)]
pub struct PageArgs {
    /// Prints the page with this token, which the page before it ends with
    #[arg(long, value_name = "TOKEN", value_parser = token, conflicts_with = "all")]
    page: Option<PageToken>,
    /// Prints all pages
    #[arg(long)]
    all: bool,
}

/// Parses a page token as an argument.
pub fn token(text: &str) -> Result<PageToken, String> {
    text.parse().map_err(|error: Error| error.to_string())
}

impl PageArgs {
    /// Reads the requested part of a list, and prints it as a table.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be read or printed.
    pub async fn print<T: Serialize>(
        &self,
        context: &Context,
        columns: &[&str],
        row: impl Fn(&T) -> Vec<String>,
        mut read: impl AsyncFnMut(Option<&PageToken>) -> Result<Page<T>, Error>,
    ) -> Result<Outcome, Failure> {
        let mut list = read(self.page.as_ref()).await?;
        while self.all
            && let Some(next) = list.next.take()
        {
            let page = read(Some(&next)).await?;
            list.items.extend(page.items);
            list.next = page.next;
        }
        let output = context.output();
        output.print(&list, |list| {
            if list.items.is_empty() {
                return String::new();
            }
            output.table(columns, list.items.iter().map(&row))
        })?;
        match &list.next {
            Some(next) => output.note(&format!("more: --page {next}, or --all")),
            None if list.items.is_empty() => output.note("none"),
            None => {}
        }
        Ok(Outcome::Done)
    }
}
